"""What a cell trained with is compared, and printed, from its own records."""

import json
from typing import Any

import pytest

from tasks.gates.setting import find_setting_problems
from tasks.reporting.collect import collect_results
from tests.tasks.reporting.blocks import RANGES, write_blocks
from tests.tasks.reporting.comparison import PARAMS, edit_json, edit_segment, outputs_of, setting_of, write_comparison
from tests.tasks.reporting.rendered import line_of

Setting = dict[str, Any]


def _changed(setting, section, **changes):
    return setting | {section: setting[section] | changes}


def _find(folder, params, cell="2proc"):
    return find_setting_problems(outputs_of(folder, params), cell)


def _has(found, code, /, **numbers):
    """Return whether one of them is this one; `at`: a part of where it was seen."""
    at = numbers.pop("at", "")
    return any(one.code == code and at in one.sentence and one.numbers.items() >= numbers.items() for one in found)


def test_a_smaller_micro_batch_for_want_of_memory_is_the_same_work(params, tmp_path):
    first = setting_of(params)
    edit_segment(tmp_path, "2proc", settings=[first, _changed(first, "train", micro_batch_size=2)])
    assert _find(tmp_path, params) == []


def test_what_was_not_recorded_does_not_pass(params, tmp_path):
    write_blocks(tmp_path, settings={"1proc": [setting_of(params)]})
    assert [one.code for one in _find(tmp_path, params)] == ["no_record"]
    write_blocks(tmp_path)
    edit_segment(tmp_path, "2proc", settings=[])
    assert [one.code for one in _find(tmp_path, params)] == ["no_record"]


def test_a_record_that_is_not_what_params_yaml_says_fails_and_the_report_prints_the_record(params, tmp_path):
    lora = {"kind": "lora", "rank": 16, "alpha": 32.0, "targets": ["q_proj", "v_proj"], "base": "nf4"}
    recorded = setting_of(params)["train"] | {"epochs": 1, "adapter": lora}
    edit_json(tmp_path / "runs/1proc/run.json", train=recorded)
    asked = params | {"train": params["train"] | {"weight_decay": 0.05, "seed": 7}}
    outputs = outputs_of(tmp_path, asked)
    for cell in params["cells"]:
        found = find_setting_problems(outputs, cell)
        assert _has(found, "other_value", name="weight_decay", found=0.0, whose="params.yaml", expected=0.05)
    results = collect_results(outputs)
    assert all(cell.is_withheld for cell in results.cells)
    work = line_of(results, "Work")
    assert all(one in work for one in ("seed 0", "rank 16", "alpha 32", "q_proj, v_proj", "nf4"))


def test_a_run_whose_segments_are_not_of_its_own_values_is_found(params, tmp_path):
    kept = {"epochs": 1, "watchdog_seconds": 60.0, "emulated_bf16": False, "loss_chunk_rows": None}
    record = setting_of(params)["train"] | kept
    for cell in params["cells"]:
        edit_json(tmp_path / "runs" / cell / "run.json", train=record | {"seed": 7})
    found = _find(tmp_path, params | {"train": params["train"] | {"seed": 7}}, "1proc")
    assert _has(found, "other_value", at="1proc 0-8 epoch 1", name="seed", found=0, expected=7)


def test_a_cell_whose_timed_processes_have_another_priority_than_the_baselines_fails(params, tmp_path):
    normal, nice = (setting_of(params) | {"priority": {"niceness": value, "policy": 0}} for value in (0, 15))
    # All alike is fine, whatever the priority of the training was.
    write_blocks(tmp_path, settings={"1proc": [nice], "2proc": [nice]})
    assert _find(tmp_path, params) == []
    write_blocks(tmp_path, settings={"1proc": [normal], "2proc": [nice]})
    assert _has(_find(tmp_path, params), "other_value", at="2proc, timed blocks", name="niceness", found=15, expected=0)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("numerics_version", "other_numerics_version"),
        ("base_model_digest", "other_base_model"),
        ("machine_digest", "other_machine"),
    ],
)
def test_a_measurement_of_something_else_than_was_trained_fails(name, code, params, tmp_path):
    write_blocks(tmp_path, **{name: 7 if name == "numerics_version" else "0ther"})
    for cell in params["cells"]:
        assert [one.code for one in _find(tmp_path, params, cell)] == [code]


def test_a_larger_batch_is_what_weak_scaling_asks_for_and_nothing_else_may_differ(params, tmp_path):
    right, larger = setting_of(params), {"global_batch_size": 8}
    weak = _changed(right, "train", **larger)
    write_blocks(tmp_path, of_2proc=larger, settings={"1proc": [right], "2proc": [weak]})
    assert _find(tmp_path, params) == []
    write_blocks(tmp_path, of_2proc=larger, settings={"1proc": [right], "2proc": [right]})
    assert _has(_find(tmp_path, params), "other_value", name="train.global_batch_size", found=4, expected=8)


@pytest.mark.parametrize("changed", [{"packages": {"deepspeed": "1.1"}}, {"options": {"stage": 3}}])
def test_cells_may_differ_in_versions_and_options_and_starts_of_one_cell_may_not(changed, params, tmp_path):
    """A launch that went on after `pip install`, and blocks that were timed before it."""
    first = setting_of(params)
    right = first | {"packages": {"deepspeed": "1.0"}, "options": {"stage": 1}}
    for part in ("0-8", "8-16"):
        edit_segment(tmp_path, "2proc", part, settings=[right])
    write_blocks(tmp_path, settings={"1proc": [first], "2proc": [right]})
    assert _find(tmp_path, params) == []
    results = collect_results(outputs_of(tmp_path, params))
    assert line_of(results, "Versions") == "python 3.11.9, torch 2.15.0, deepspeed 1.0"
    ((section, value),) = changed.items()
    other = {"name": f"{section}.{next(iter(value))}", "found": next(iter(value.values()))}
    write_blocks(tmp_path, settings={"1proc": [first], "2proc": [right | changed]})
    assert _has(_find(tmp_path, params), "other_value", at="2proc, timed blocks", **other)
    edit_segment(tmp_path, "2proc", "8-16", settings=[right, right | changed])
    assert _has(_find(tmp_path, params), "other_value", at="2proc 8-16 epoch 1", **other)


def test_blocks_and_trainings_of_other_rows_of_the_same_numbers_fail(params, tmp_path):
    held = {part: json.loads((tmp_path / f"slices/{part}/manifest.json").read_text())["digest"] for part in RANGES}
    write_blocks(tmp_path, rows_digests=held | {RANGES[0]: "ab" * 32, "0-99": "ab" * 32})
    found = _find(tmp_path, params)
    assert [one.code for one in found] == ["other_rows", "range_not_asked_for"]
    assert _has(found, "other_rows", where="2proc, timed blocks", range=RANGES[0], found="ab" * 6)
    write_blocks(tmp_path, rows_digests=held)
    assert _find(tmp_path, params) == []
    run = tmp_path / "runs/2proc/run.json"
    entries = json.loads(run.read_text())["segments"]
    edit_json(run, segments=[entries[0] | {"rows_digest": "cd" * 32}, *entries[1:]])
    assert _has(_find(tmp_path, params), "other_rows", where="2proc", range="0-8", found="cd" * 6)


DEBIANS, OWN = ({"sitecustomize": digit * 64, "usercustomize": None} for digit in "ab")


def _judge_starts(folder, params, first, second):
    """Return what is found of 2proc where the trainings of the cells ran this on these machines."""
    for cell, machines in (("1proc", first), ("2proc", second)):
        for part in params["ranges"]:
            edit_segment(folder, cell, part, settings=[setting_of(params) | {"run_at_start": machines}])
    return _find(folder, params)


@pytest.mark.parametrize(
    ("first", "second", "machines"),
    [
        ({"first": DEBIANS}, {"first": DEBIANS, "second": OWN}, set()),
        ({"first": DEBIANS}, {"first": OWN, "second": OWN}, {"first"}),
        # A container is named anew whenever it is made, which hides nothing.
        ({"first": DEBIANS}, {"renamed": DEBIANS}, set()),
        ({"first": DEBIANS}, {"renamed": OWN}, {"renamed"}),
    ],
)
def test_what_python_ran_at_its_start_is_held_machine_by_machine(params, tmp_path, first, second, machines):
    found = _judge_starts(tmp_path, params, first, second)
    assert {(one.code, one.numbers["machine"]) for one in found} == {("other_start", machine) for machine in machines}


def test_a_machine_without_the_baseline_is_held_between_the_others_and_both_fail(tmp_path):
    """Which of the two ran what it should not have nobody knows."""
    cells = PARAMS["cells"] | {"4proc": {"strategy": "ddp", "world_size": 4}}
    seconds = {"1proc": [6.0, 4.0], "2proc": [4.0, 2.4], "4proc": [2.5, 1.5]}
    params = write_comparison(tmp_path, params=PARAMS | {"cells": cells}, seconds=seconds)
    for part in params["ranges"]:
        ran = {"run_at_start": {"first": DEBIANS, "second": DEBIANS}}
        edit_segment(tmp_path, "4proc", part, settings=[setting_of(params) | ran])
    found = _judge_starts(tmp_path, params, {"first": DEBIANS}, {"first": DEBIANS, "second": OWN})
    assert {one.code for one in (*found, *_find(tmp_path, params, "4proc"))} == {"other_start"}
    assert _find(tmp_path, params, "1proc") == []


def test_starts_of_one_cell_that_differ_on_a_machine_fail_and_so_does_one_without_a_record(params, tmp_path):
    first, both = {"first": DEBIANS}, {"first": DEBIANS, "second": OWN}
    other = setting_of(params) | {"run_at_start": {"first": DEBIANS, "second": DEBIANS}}
    assert _judge_starts(tmp_path, params, first, both) == []
    write_blocks(tmp_path, settings={"1proc": [setting_of(params) | {"run_at_start": first}], "2proc": [other]})
    (found,) = _find(tmp_path, params)
    assert found.code == "other_start"
    assert (found.numbers["machine"], found.numbers["whose"]) == ("second", "2proc 0-8 epoch 1")
    write_blocks(tmp_path)
    assert _judge_starts(tmp_path, params, first, {})[0].code == "no_record_of_start"
