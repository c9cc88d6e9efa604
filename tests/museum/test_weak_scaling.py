"""Weak scaling is timed on larger steps than are trained: checked as what they are, and held to their rows."""

import json
from pathlib import Path

import pytest

from tests.museum.museum import ABOUT_SECONDS, compare
from tests.museum.project import Size, copy_project, make_project
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow

MEASURE = {"speed": True, "scaling": "weak", "max_seconds": 4, "waterfall_seconds": 1, "block_seconds": 0.04}


def test_a_weak_scaling_comparison_without_a_defect_lacks_no_proof(tmp_path: Path, project: Path) -> None:
    measure = {**MEASURE, "others_share": 1, "advice": False}
    size = Size(num_rows=(61, 29), measure=tuple(measure.items()))
    run_elsewhere(make_project, tmp_path / "blank", project, size)
    outcome = compare(copy_project(tmp_path / "blank", tmp_path / "compared"))
    assert outcome.results is not None, outcome.says
    gates = {gate["name"]: gate for gate in outcome.results["gates"]}
    others = {name: gate["verdict"] for name, gate in gates.items() if name not in ABOUT_SECONDS}
    del others["Quiet enough to tell"]
    assert others == dict.fromkeys(others, "passed"), outcome.says
    timed = json.loads((tmp_path / "compared/data/measurements/speed.json").read_bytes())["checked_updates"]
    assert [one["verdict"] for one in timed["2proc"]] == ["passed"] * 3
    told = {one["cell"]: one["compared"] for one in gates["Timed blocks did the work"]["findings"]}
    assert "a step of 16 samples, weak scaling" in told["2proc"]
    assert "loss" in told["1proc"]
