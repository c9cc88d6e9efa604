"""A whole comparison with strategies whose ranks share the model: measured, trained, checked, gated, reported."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.museum.museum import ABOUT_SECONDS, compare
from tests.museum.project import CELLS, Size, change_params, copy_project, make_project
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow

_FORKED = {"world_size": 2, "launcher": "forked"}
_SHARED = {
    "2proc": ({"strategy": "fsdp2"}, "all-gathers"),
    "2stages": ({"strategy": "pipeline"}, "messages from the first rank of 2 stages"),
}
_OF_DEEPSPEED = {
    "2zero2": ({"strategy": "deepspeed", "options": {"offload": "cpu"}}, "all-reduces"),
    "2zero3": ({"strategy": "deepspeed", "options": {"stage": 3, "whole_below": 1000}}, "reduce-scatters"),
}
"""Cell -> what it is, and the exchanges that are told of it."""


def test_cells_of_shards_and_of_stages_pass_every_gate_and_the_report_says_what_is_not_available_for_them(
    tmp_path: Path, project: Path
) -> None:
    run_elsewhere(make_project, tmp_path / "blank", project, Size())
    copy = copy_project(tmp_path / "blank", tmp_path / "compared")
    cells = _SHARED | (_OF_DEEPSPEED if find_spec("deepspeed") else {})
    change_params(
        copy,
        {
            **{f"cells.{cell}": {**_FORKED, **what} for cell, (what, _) in cells.items()},
            "measure": {
                "speed": True,
                "max_seconds": 4,
                "block_seconds": 0.12,
                "waterfall_seconds": 1,
            }
            | {"others_share": 1, "advice": False},
        },
    )
    outcome = compare(copy, tuple(dict.fromkeys((*CELLS, *cells))))
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {"Every rank has a device of its own", *ABOUT_SECONDS}, outcome.says
    assert outcome.results is not None
    for cell, (_, exchanges) in cells.items():
        findings = {
            gate["name"]: one
            for gate in outcome.results["gates"]
            for one in gate["findings"]
            if one["cell"] == cell
        }  # fmt: skip
        for name in (
            "Update equivalence", "Gradients were synchronised", "Same parameters on all ranks",
            "Every sample exactly once",
        ):  # fmt: skip
            assert findings[name]["verdict"] == "passed", findings[name]
        assert exchanges in findings["Gradients were synchronised"]["compared"]
        if cell in _SHARED:
            assert "hold one copy of the state between them" in findings["Same parameters on all ranks"]["compared"]
    # Its lines are broken where they are too long.
    report = " ".join((copy / "reports" / "report.md").read_text().split())
    assert "2proc: A waterfall: not available for the strategy fsdp2" in report
    falls = {fall["cell"]: fall["parts"][0]["name"] for fall in outcome.results["measurement"]["waterfalls"]}
    assert falls["2stages"] == "waiting for other stages"
    assert "2stages: A waterfall: not available" not in str(outcome.results["measurement"])
    (waits,) = (one for one in outcome.results["measurement"]["waits"] if one.startswith("2stages: "))
    assert waits.startswith("2stages: its ranks wait for each other ")
    assert waits in report
    memory = {one["cell"]: one for one in outcome.results["measurement"]["memory"]}
    assert {cell: len(one["ranks"]) for cell, one in memory.items()} == {"1proc": 1, **dict.fromkeys(cells, 2)}
    for one in (memory[cell] for cell in ("1proc", *_SHARED)):
        assert one["not_predicted"] is None
        most = max(rank["allocated_gib"] for rank in one["ranks"])
        assert sum(one["predicted"].values()) == pytest.approx(most, rel=0.15), one
    moments = {cell: max(rank["parts"]["moments"] for rank in one["ranks"]) for cell, one in memory.items()}
    assert moments["2proc"] < 0.7 * moments["1proc"]
    assert moments["2stages"] < moments["1proc"]
    assert "Most memory of a rank in a step, by what it is for" in report
    kinds = {"2proc": {"all_gather", "reduce_scatter", "all_reduce"}, "2stages": {"send", "all_reduce"}}
    for cell, expected in kinds.items():
        segment = json.loads(next((copy / "data/runs" / cell).glob("segments/*/segment.json")).read_bytes())
        assert set(segment["traffic"]) == expected
