"""Instructions, packed, through every stage: the responses alone are learned, and no gate raises an alarm."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.museum.museum import ABOUT_SECONDS, compare
from tests.museum.project import CELLS, Size, copy_project, make_project
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow


def test_packed_instructions_raise_no_alarm_and_their_targets_are_the_responses(tmp_path: Path, project: Path) -> None:
    size = Size(workload="instruction", train=(("packing", True), ("micro_batch_size", 2)))
    run_elsewhere(make_project, tmp_path / "blank", project, size)
    copy = copy_project(tmp_path / "blank", tmp_path / "compared")
    outcome = compare(copy)
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {"Every rank has a device of its own", *ABOUT_SECONDS}, outcome.says
    for gate in ("Update equivalence", "Starts from the base model", "Every sample exactly once", "Equal tokens"):
        assert outcome.verdicts[gate] == "passed"
    offsets, prompts = (np.load(copy / f"data/slices/0-45/{name}.npy") for name in ("offsets", "prompts"))
    num_targets = int(offsets[-1] - prompts.sum())
    for cell in CELLS:
        segment = json.loads((copy / "data/runs" / cell / "segments/0-45-epoch-1/segment.json").read_bytes())
        assert (segment["num_tokens"], segment["num_targets"]) == (int(offsets[-1]) - 45, num_targets)
