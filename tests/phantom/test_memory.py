"""What a training of the true Qwen2-0.5B takes of a card, as torch's own allocator has it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.phantom.cards import CARDS, CONTEXT_BYTES
from tests.phantom.counts import read_counts

pytestmark = pytest.mark.slow

OnPhantom = Callable[..., Path]

_BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments, in fp32."""


def _measure(folder: Path, precision: str, rows: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.phantom.memory", str(folder), "Qwen2-0.5B", precision, rows]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "phantom:" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_preset_fits_on_an_h100_with_its_packed_rows(on_phantom: OnPhantom, tmp_path: Path) -> None:
    counts = on_phantom("H100-80")
    found = _measure(tmp_path, "bf16", "packed")
    assert found["parameters"] == 494_032_768
    state = found["parameters"] * _BYTES_PER_PARAMETER / 2**30
    assert state < found["allocated_gib"] < 2.5 * state
    assert found["allocated_gib"] <= found["reserved_gib"] < CARDS["H100-80"].memory_bytes / 2**30
    # The allocator's word against that of the driver below it.
    (ours,) = read_counts(counts)
    assert found["reserved_gib"] * 2**30 <= ours.highest_bytes[0] <= found["reserved_gib"] * 2**30 + 2**28


def test_what_does_not_fit_on_a_t4_is_out_of_memory_as_on_a_real_one(on_phantom: OnPhantom, tmp_path: Path) -> None:
    counts = on_phantom("T4")
    found = _measure(tmp_path, "fp16", "padded")
    total = CARDS["T4"].memory_bytes
    assert found["error"].startswith("CUDA out of memory. Tried to allocate")
    assert f"total capacity of {total / 2**30:.2f} GiB" in found["error"]
    (ours,) = read_counts(counts)
    assert 0.7 * total < ours.highest_bytes[0] <= total - CONTEXT_BYTES
