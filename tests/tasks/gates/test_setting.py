"""What a cell trained with is compared, and printed, from its own records."""

import json

import pytest

from tasks.gates.setting import find_setting_problems
from tasks.reporting.collect import collect_results
from tests.tasks.reporting.blocks import RANGES, write_blocks
from tests.tasks.reporting.comparison import (
    THREE_CELLS,
    edit_json,
    edit_segment,
    outputs_of,
    setting_of,
    write_comparison,
)
from tests.tasks.reporting.rendered import line_of


def _find(folder, params, cell="2proc"):
    return find_setting_problems(outputs_of(folder, params), cell)


def _has(found, code="other_value", /, *, at="", **numbers):
    """Return whether one of them is this one, seen at such a place."""
    return any(one.code == code and at in one.sentence and one.numbers.items() >= numbers.items() for one in found)


@pytest.fixture
def find(tmp_path, params):
    """Return `find(cell="2proc")`: what is found of a cell of the comparison as it is."""
    return lambda cell="2proc": _find(tmp_path, params, cell)


@pytest.fixture
def right(params):
    """The setting of every cell."""
    return setting_of(params)


def test_a_smaller_micro_batch_for_want_of_memory_is_the_same_work_and_what_was_not_recorded_is_none(
    right, tmp_path, find
):
    smaller = right | {"train": right["train"] | {"micro_batch_size": 2}}
    edit_segment(tmp_path, "2proc", settings=[right, smaller])
    assert find() == []
    write_blocks(tmp_path, settings={"1proc": [right]})
    assert [one.code for one in find()] == ["no_record"]
    write_blocks(tmp_path)
    edit_segment(tmp_path, "2proc", settings=[])
    assert [one.code for one in find()] == ["no_record"]


def test_a_record_that_is_not_what_params_yaml_says_fails_and_the_report_prints_the_record(params, tmp_path):
    recorded = setting_of(params)["train"] | {"epochs": 1, "max_grad_norm": 2.0}
    edit_json(tmp_path / "runs/1proc/run.json", train=recorded)
    asked = params | {"train": params["train"] | {"weight_decay": 0.05, "seed": 7}}
    for cell in params["cells"]:
        found = _find(tmp_path, asked, cell)
        assert _has(found, name="weight_decay", found=0.0, whose="params.yaml", expected=0.05)
    # Nor are the segments of the run's own values.
    assert _has(_find(tmp_path, asked, "1proc"), at="1proc 0-8 epoch 1", name="max_grad_norm", expected=2.0)
    results = collect_results(outputs_of(tmp_path, asked))
    assert all(cell.is_withheld for cell in results.cells)
    assert "seed 0" in line_of(results, "Work")


def test_timed_processes_of_another_priority_or_of_something_else_than_trained_fail(right, params, tmp_path, find):
    normal, nice = (right | {"priority": {"niceness": value, "policy": 0}} for value in (0, 15))
    # All alike is fine, whatever the priority of the training was.
    write_blocks(tmp_path, settings={"1proc": [nice], "2proc": [nice]})
    assert find() == []
    write_blocks(tmp_path, settings={"1proc": [normal], "2proc": [nice]})
    assert _has(find(), at="2proc, timed blocks", name="niceness", found=15, expected=0)
    write_blocks(tmp_path, numerics_version=7, base_model_digest="0ther", machine_digest="0ther")
    for cell in params["cells"]:
        assert [one.code for one in find(cell)] == ["other_numerics_version", "other_base_model", "other_machine"]


def test_a_larger_batch_is_what_weak_scaling_asks_for_and_no_other(right, params, tmp_path):
    larger, weak = {"global_batch_size": 8}, params | {"measure": {"scaling": "weak"}}
    timed = right | {"train": right["train"] | larger}
    write_blocks(tmp_path, of_2proc=larger, settings={"1proc": [right], "2proc": [timed]})
    assert _find(tmp_path, weak) == []
    # Called strong all the same.
    assert _has(_find(tmp_path, params), name="train.global_batch_size", found=8, expected=4)
    write_blocks(tmp_path, of_2proc=larger, settings={"1proc": [right], "2proc": [right]})
    assert _has(_find(tmp_path, weak), name="train.global_batch_size", found=4, expected=8)


def test_cells_may_differ_in_versions_and_options_and_starts_of_one_cell_may_not(
    right, params, tmp_path, find, collect
):
    """A launch that went on after `pip install`, and blocks that were timed before it."""
    own = right | {"packages": {"deepspeed": "1.0"}, "options": {"stage": 1}}
    for part in params["ranges"]:
        edit_segment(tmp_path, "2proc", part, settings=[own])
    write_blocks(tmp_path, settings={"1proc": [right], "2proc": [own]})
    assert find() == []
    assert line_of(collect(), "Versions") == "python 3.11.9, torch 2.15.0, deepspeed 1.0"
    changed = own | {"packages": {"deepspeed": "1.1"}, "options": {"stage": 3}}
    write_blocks(tmp_path, settings={"1proc": [right], "2proc": [changed]})
    edit_segment(tmp_path, "2proc", "8-16", settings=[own, changed])
    for at in ("2proc, timed blocks", "2proc 8-16 epoch 1"):
        assert _has(find(), at=at, name="packages.deepspeed", found="1.1")
        assert _has(find(), at=at, name="options.stage", found=3)


def test_blocks_and_trainings_of_other_rows_of_the_same_numbers_fail(params, tmp_path, find):
    held = {part: json.loads((tmp_path / f"slices/{part}/manifest.json").read_text())["digest"] for part in RANGES}
    write_blocks(tmp_path, rows_digests=held | {RANGES[0]: "ab" * 32, "0-99": "ab" * 32})
    assert [one.code for one in find()] == ["other_rows", "range_not_asked_for"]
    assert _has(find(), "other_rows", where="2proc, timed blocks", range=RANGES[0])
    write_blocks(tmp_path, rows_digests=held)
    assert find() == []
    run = tmp_path / "runs/2proc/run.json"
    first, *others = json.loads(run.read_text())["segments"]
    edit_json(run, segments=[first | {"rows_digest": "cd" * 32}, *others])
    assert _has(find(), "other_rows", where="2proc", range="0-8")


DEBIANS, OWN = ({"sitecustomize": digit * 64, "usercustomize": None} for digit in "ab")
FIRST, BOTH, MIXED = {"first": DEBIANS}, {"first": DEBIANS, "second": DEBIANS}, {"first": DEBIANS, "second": OWN}


def _judge_starts(folder, params, **machines):
    """Return what is found of each cell where the trainings of the cells ran this on these machines."""
    for cell, ran in machines.items():
        for part in params["ranges"]:
            edit_segment(folder, cell, part, settings=[setting_of(params) | {"run_at_start": ran}])
    found = {cell: _find(folder, params, cell) for cell in machines}
    return {cell: {(one.code, one.numbers.get("machine")) for one in its} for cell, its in found.items()}


@pytest.mark.parametrize(
    ("two", "four", "wrong"),
    [
        (MIXED, FIRST, {}),
        ({"first": OWN, "second": OWN}, FIRST, {"2proc": "first"}),
        # A container is named anew whenever it is made, which hides nothing.
        ({"renamed": DEBIANS}, FIRST, {}),
        ({"renamed": OWN}, FIRST, {"2proc": "renamed"}),
        # Without the baseline nobody knows which of the two ran what it should not have.
        (MIXED, BOTH, {"2proc": "second", "4proc": "second"}),
    ],
)
def test_what_python_ran_at_its_start_is_held_machine_by_machine(tmp_path, two, four, wrong):
    params = write_comparison(tmp_path, params=THREE_CELLS, seconds={cell: [6.0, 4.0] for cell in THREE_CELLS["cells"]})
    found = _judge_starts(tmp_path, params, **{"1proc": FIRST, "2proc": two, "4proc": four})
    assert {cell: its for cell, its in found.items() if its} == {
        cell: {("other_start", machine)} for cell, machine in wrong.items()
    }


def test_starts_of_one_cell_that_differ_on_a_machine_fail_and_so_does_one_without_a_record(params, tmp_path, right):
    assert _judge_starts(tmp_path, params, **{"1proc": FIRST, "2proc": MIXED})["2proc"] == set()
    timed = {"1proc": FIRST, "2proc": BOTH}
    write_blocks(tmp_path, settings={cell: [right | {"run_at_start": ran}] for cell, ran in timed.items()})
    (found,) = _find(tmp_path, params)
    assert (found.code, found.numbers["machine"]) == ("other_start", "second")
    write_blocks(tmp_path)
    assert ("no_record_of_start", None) in _judge_starts(tmp_path, params, **{"1proc": FIRST, "2proc": {}})["2proc"]
