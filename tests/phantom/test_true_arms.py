"""All that `measure` builds of Qwen2-0.5B fits on the smallest card that the presets are for, which is not there."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.measuring.arms import WRAPPED
from tests.conftest import PROJECT
from tests.true_models import NUM_PARAMETERS

pytestmark = pytest.mark.slow

_GRADIENT_GIB = 4 * NUM_PARAMETERS["Qwen2-0.5B"] / 2**30
_STATE_GIB = 4 * _GRADIENT_GIB
"""Weights, gradient and two moments."""


def test_certificate_and_arms_of_two_cells_fit_on_two_t4(on_phantom: Callable[..., Path], tmp_path: Path) -> None:
    # Both cells have a rank on the first card, whose memory all processes share.
    on_phantom("T4", num_cards=2)
    command = [sys.executable, "-m", "tests.phantom.true_arms", str(tmp_path / "case")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "phantom:" not in done.stderr
    found = json.loads(done.stdout)
    assert found.pop("holds all") is False
    # Weights, moments, and the gradients of the ranks so far, of one rank, and of a micro-batch.
    assert 6 * _GRADIENT_GIB < found.pop("one process") < 7 * _GRADIENT_GIB
    assert len(found) == 11
    for ranks in found.values():
        # Activations, and a gradient in DDP's buckets beside that of an earlier micro-batch: nothing of other arms.
        assert _STATE_GIB < max(ranks) < _STATE_GIB + 3 * _GRADIENT_GIB, found
    assert found[f"1gpu{WRAPPED}"][0] == pytest.approx(found["1gpu"][0] + _GRADIENT_GIB, rel=0.02)
