"""Comparisons without a defect pass every gate but those that need a quiet machine, however the work is shared out."""

from importlib.util import find_spec

import pytest

from tests.museum.museum import ABOUT_DEVICES, ABOUT_SECONDS, MEASURE, compare
from tests.museum.project import CELLS, Size, change_params, copy_project, make_project
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow

_MEASURE = tuple((MEASURE | {"max_seconds": 4, "block_seconds": 0.12, "waterfall_seconds": 1, "memory": True}).items())
_DDP = {"2proc": {"strategy": "ddp"}}
_SHARED = {
    "2proc": {"strategy": "fsdp2"},
    "2stages": {"strategy": "pipeline"},
    **(
        {
            "2zero2": {"strategy": "deepspeed", "options": {"offload": "cpu"}},
            "2zero3": {"strategy": "deepspeed", "options": {"stage": 3, "whole_below": 1000}},
        }
        if find_spec("deepspeed")
        else {}
    ),
}
_CASES = {
    # 47 rows are one batch of 30 and one of 17: most ranks run dummies in its last round.
    "five ranks and partial batches": (
        Size(num_rows=(47, 29), train=(("global_batch_size", 30), ("micro_batch_size", 1))),
        {"2proc": {"strategy": "ddp", "world_size": 5}},
    ),
    "weak scaling, timed": (Size(num_rows=(61, 29), measure=(*_MEASURE, ("scaling", "weak"))), _DDP),
    "shards and stages, timed": (Size(measure=_MEASURE), _SHARED),
}  # fmt: skip
_OWED = (
    "Update equivalence", "Gradients were synchronised", "Same parameters on all ranks", "Every sample exactly once",
    "Loss curves coincide",
)  # fmt: skip


@pytest.mark.parametrize(("size", "cells"), _CASES.values(), ids=_CASES)
def test_a_right_comparison_passes_and_each_update_is_one_processs(tmp_path, project, size, cells):
    run_elsewhere(make_project, tmp_path / "blank", project, size)
    copy = copy_project(tmp_path / "blank", tmp_path / "compared")
    spread = {"world_size": 2, "launcher": "forked"}
    change_params(copy, {f"cells.{cell}": spread | what for cell, what in cells.items()})
    outcome = compare(copy, (CELLS[0], *cells))
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {ABOUT_DEVICES, *ABOUT_SECONDS}, outcome.says
    findings = {
        gate["name"]: {one["cell"]: one["outcome"] for one in gate["findings"]} for gate in outcome.results["gates"]
    }
    for name in (*_OWED, *["Timed blocks did the work"] * bool(size.measure)):
        assert {findings[name][cell] for cell in cells} == {"passed"}, name
