"""A whole comparison with cells of DeepSpeed: trained, certified, gated, reported."""

from pathlib import Path

import pytest

from tests.extras import skip_without
from tests.museum.museum import ABOUT_SECONDS, compare
from tests.museum.project import CELLS, Size, change_params, copy_project, make_project
from tests.museum.stage_process import run_elsewhere

skip_without("deepspeed")
pytestmark = pytest.mark.slow


def test_cells_of_deepspeed_pass_every_gate(tmp_path: Path, project: Path) -> None:
    run_elsewhere(make_project, tmp_path / "blank", project, Size())
    copy = copy_project(tmp_path / "blank", tmp_path / "compared")
    spread = {"strategy": "deepspeed", "world_size": 2, "launcher": "forked"}
    change_params(
        copy,
        {
            "cells.2proc": {**spread, "options": {"offload": "cpu"}},
            "cells.2zero3": {**spread, "options": {"stage": 3, "whole_below": 1000}},
        },
    )
    outcome = compare(copy, (*CELLS, "2zero3"))
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {"Every rank has a device of its own", *ABOUT_SECONDS}, outcome.says
    assert outcome.results is not None
    for cell, exchanges in (("2proc", "all-reduces"), ("2zero3", "reduce-scatters")):
        findings = {
            gate["name"]: one for gate in outcome.results["gates"] for one in gate["findings"] if one["cell"] == cell
        }
        for name in (
            "Update equivalence", "Gradients were synchronised", "Same parameters on all ranks",
            "Every sample exactly once",
        ):  # fmt: skip
            assert findings[name]["verdict"] == "passed", findings[name]
        assert exchanges in findings["Gradients were synchronised"]["compared"]
