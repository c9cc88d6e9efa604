"""Packs of one length on a card that is not there: every step asks the same of it."""

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


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_steps_of_packs_of_one_length_have_equally_many_kernels_wait_for_nothing_and_take_no_more_memory(
    is_compiled: bool, on_phantom: Callable[..., Path], tmp_path: Path
) -> None:
    counts = on_phantom("H100-80")
    found = _run(tmp_path, counts, packing="fixed", compile=is_compiled)
    assert found["graphs"] == is_compiled
    # The last step has fewer rows; the first makes the moments.
    steps = [step for step in found["steps"][1:] if step["micro_batches"] == 2]
    assert len(steps) >= 5
    assert len({step["kernels"] for step in steps}) == 1, steps
    assert not any(step["waits"] for step in steps)
    assert len({step["reserved_bytes"] for step in found["steps"]}) == 1


def test_packs_of_any_length_and_number_of_rows_are_compiled_in_two_graphs(
    on_phantom: Callable[..., Path], tmp_path: Path
) -> None:
    found = _run(tmp_path, on_phantom("H100-80"), packing=True, compile=True)
    assert found["graphs"] == 2
    assert not any(step["waits"] for step in found["steps"][1:])
