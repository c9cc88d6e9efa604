"""Packs on a card that is not there: no step waits, none is compiled for, and kernels do not become more."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.slow


def _run(folder: Path, counts: Path, **changes: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.phantom.shapes", str(folder), str(counts), json.dumps(changes)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "phantom:" not in done.stderr, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("is_compiled", "most_kernels"), [(False, 745), (True, 420)], ids=["eager", "compiled"])
def test_packs_of_any_length_ask_for_as_many_kernels_as_ever_and_for_no_graph_after_the_warm_up(
    is_compiled: bool, most_kernels: int, on_phantom: Callable[..., Path], tmp_path: Path
) -> None:
    found = _run(tmp_path, on_phantom("H100-80"), packing=True, compile=is_compiled)
    # Layers for several sequences and for one, and the loss.
    assert found["warm_up"]["graphs"] == found["graphs"] == 3 * is_compiled
    assert not any(step["waits"] for step in found["steps"][1:])
    steps = [step for step in found["steps"][1:] if step["micro_batches"] == 2]
    assert len(steps) >= 5
    (num_kernels,) = {step["kernels"] for step in steps}
    # What a step costs the host, on any card: a guard against more of them. Time is measured elsewhere.
    assert num_kernels <= most_kernels
    assert len({step["reserved_bytes"] for step in steps}) == 1
