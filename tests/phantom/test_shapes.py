"""Packs on a card that is not there: no step waits, and none is compiled for."""

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


def test_packs_of_any_length_and_number_of_rows_are_compiled_in_two_graphs(
    on_phantom: Callable[..., Path], tmp_path: Path
) -> None:
    found = _run(tmp_path, on_phantom("H100-80"), packing=True, compile=True)
    assert found["graphs"] == 2
    assert not any(step["waits"] for step in found["steps"][1:])
