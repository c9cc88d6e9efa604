"""What a cell trained with is compared, and printed, from its own records."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddp_audit.process.wording import Reason
from tasks.gates.checks import check_gates
from tasks.gates.setting import find_setting_problems
from tasks.reporting.collect import collect_results
from tests.tasks.reporting.blocks import RANGES, write_blocks
from tests.tasks.reporting.comparison import edit_json, edit_segment, outputs_of, setting_of
from tests.tasks.reporting.rendered import line_of

Setting = dict[str, Any]


def _changed(setting: Setting, section: str, **changes: Any) -> Setting:
    return setting | {section: setting[section] | changes}


DEFECTS: dict[str, tuple[Callable[[Setting], Setting], dict[str, Any]]] = {
    "another weight decay": (
        lambda one: _changed(one, "train", weight_decay=0.05),
        {"name": "train.weight_decay", "found": 0.05, "expected": 0.0},
    ),
    "another attention kernel": (
        lambda one: _changed(one, "kernels", attention="eager"),
        {"name": "kernels.attention", "found": "eager", "expected": "sdpa"},
    ),
    "deterministic kernels in one arm": (
        lambda one: _changed(one, "kernels", deterministic=True),
        {"name": "kernels.deterministic", "found": True, "expected": False},
    ),
    "another NCCL algorithm": (
        lambda one: _changed(one, "environment", NCCL_ALGO="Tree"),
        {"name": "environment.NCCL_ALGO", "found": "Tree", "expected": None},
    ),
    "a profiler in one arm": (
        lambda one: one | {"interpreter": {"watched_by": ["profile"]}},
        {"name": "interpreter.watched_by", "found": ["profile"], "expected": None},
    ),
    "another torch": (
        lambda one: _changed(one, "versions", torch="2.14.0"),
        {"name": "versions.torch", "found": "2.14.0", "expected": "2.15.0"},
    ),
    "another workload": (
        lambda one: one | {"workload": "sequence_classification"},
        {"name": "workload", "found": "sequence_classification", "expected": "causal_lm"},
    ),
    "a rank with another version of what computes": (
        lambda one: one | {"packages": {"deepspeed": "1.0"}, "ranks_differ": {"rank 1": {"packages.deepspeed": "1.1"}}},
        {"rank": "rank 1", "found": "{'packages.deepspeed': '1.1'}"},
    ),
    "a rank with other threads": (
        lambda one: one | {"ranks_differ": {"rank 1": {"kernels.threads": 2}}},
        {"rank": "rank 1", "found": "{'kernels.threads': 2}"},
    ),
}


def _find(folder: Path, params: dict[str, Any], cell: str = "2proc") -> list[Reason]:
    return find_setting_problems(outputs_of(folder, params), cell)


def _has(found: Sequence[Reason], code: str, /, **numbers: Any) -> bool:
    """Return whether one of them is this one; `at`: a part of where it was seen."""
    at = numbers.pop("at", "")
    return any(one.code == code and at in one.sentence and one.numbers.items() >= numbers.items() for one in found)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_cell_that_trained_with_something_else_fails_the_gate(
    defect: str, params: dict[str, Any], tmp_path: Path
) -> None:
    change, numbers = DEFECTS[defect]
    edit_segment(tmp_path, "2proc", "8-16", settings=[change(setting_of(params))])
    gate = next(gate for gate in check_gates(outputs_of(tmp_path, params)) if gate.name == "Same work in every cell")
    (problems,) = [one.problems for one in gate.findings if one.verdict == "failed"]
    assert _has(problems, "ranks_differ" if "rank" in numbers else "other_value", at="2proc 8-16 epoch 1", **numbers)


def test_cells_with_the_same_records_pass(params: dict[str, Any], tmp_path: Path) -> None:
    outputs = outputs_of(tmp_path, params)
    for cell in params["cells"]:
        assert find_setting_problems(outputs, cell) == []


def test_a_launch_that_went_on_with_other_values_is_found(params: dict[str, Any], tmp_path: Path) -> None:
    first = setting_of(params)
    edit_segment(tmp_path, "2proc", settings=[first, _changed(first, "kernels", matmul_precision="high")])
    assert _has(_find(tmp_path, params), "other_value", name="kernels.matmul_precision", found="high")


def test_a_smaller_micro_batch_for_want_of_memory_is_the_same_work(params: dict[str, Any], tmp_path: Path) -> None:
    first = setting_of(params)
    edit_segment(tmp_path, "2proc", settings=[first, _changed(first, "train", micro_batch_size=2)])
    assert _find(tmp_path, params) == []


def test_a_segment_without_a_record_of_its_setting_does_not_pass(params: dict[str, Any], tmp_path: Path) -> None:
    edit_segment(tmp_path, "2proc", settings=[])
    assert [one.code for one in _find(tmp_path, params)] == ["no_record"]


def test_a_record_that_is_not_what_params_yaml_says_fails_and_the_report_prints_the_record(
    params: dict[str, Any], tmp_path: Path
) -> None:
    asked = params | {"train": params["train"] | {"weight_decay": 0.05, "seed": 7}}
    outputs = outputs_of(tmp_path, asked)
    for cell in params["cells"]:
        found = find_setting_problems(outputs, cell)
        assert _has(found, "other_value", name="weight_decay", found=0.0, whose="params.yaml", expected=0.05)
    results = collect_results(outputs)
    assert all(cell.is_withheld for cell in results.cells)
    assert results.comparison.train["weight_decay"] == 0.0
    assert "seed 0" in line_of(results, "Work")


def test_a_run_whose_segments_are_not_of_its_own_values_is_found(params: dict[str, Any], tmp_path: Path) -> None:
    kept = {"epochs": 1, "watchdog_seconds": 60.0, "emulated_bf16": False, "loss_chunk_rows": None}
    record = setting_of(params)["train"] | kept
    for cell in params["cells"]:
        edit_json(tmp_path / "runs" / cell / "run.json", train=record | {"seed": 7})
    found = _find(tmp_path, params | {"train": params["train"] | {"seed": 7}}, "1proc")
    assert _has(found, "other_value", at="1proc 0-8 epoch 1", name="seed", found=0, expected=7)


@pytest.mark.parametrize("defect", [name for name in DEFECTS if name != "a rank with other threads"])
@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_a_start_of_the_timed_ranks_with_something_else_than_the_training_fails_the_gate(
    defect: str, cell: str, params: dict[str, Any], tmp_path: Path
) -> None:
    change, numbers = DEFECTS[defect]
    right = setting_of(params)
    write_blocks(tmp_path, settings={"1proc": [right], "2proc": [right], cell: [right, change(right)]})
    outputs = outputs_of(tmp_path, params)
    code = "ranks_differ" if "rank" in numbers else "other_value"
    assert _has(find_setting_problems(outputs, cell), code, at=f"{cell}, timed blocks", **numbers)
    other = "2proc" if cell == "1proc" else "1proc"
    assert find_setting_problems(outputs, other) == []


def test_timed_ranks_among_which_one_differs_fail_and_so_do_those_without_a_record(
    params: dict[str, Any], tmp_path: Path
) -> None:
    right = setting_of(params)
    differing = right | {"ranks_differ": {"rank 1": {"kernels.threads": 2}}}
    write_blocks(tmp_path, settings={"1proc": [right], "2proc": [differing]})
    (found,) = _find(tmp_path, params)
    assert found.code == "ranks_differ"
    assert "make rebench" in found.sentence
    write_blocks(tmp_path, settings={"1proc": [right]})
    assert [one.code for one in _find(tmp_path, params)] == ["no_record"]


def test_a_cell_whose_timed_processes_have_another_priority_than_the_baselines_fails(
    params: dict[str, Any], tmp_path: Path
) -> None:
    normal, nice = (setting_of(params) | {"priority": {"niceness": value, "policy": 0}} for value in (0, 15))
    write_blocks(tmp_path, settings={"1proc": [normal], "2proc": [nice]})
    outputs = outputs_of(tmp_path, params)
    found = find_setting_problems(outputs, "2proc")
    assert _has(found, "other_value", at="2proc, timed blocks", name="niceness", found=15, expected=0)
    assert find_setting_problems(outputs, "1proc") == []
    # All alike is fine, whatever the priority of the training was.
    write_blocks(tmp_path, settings={"1proc": [nice], "2proc": [nice]})
    assert _find(tmp_path, params) == []


@pytest.mark.parametrize(
    ("name", "other", "code"),
    [
        ("numerics_version", 7, "other_numerics_version"),
        ("base_model_digest", "0123456789abcdef", "other_base_model"),
        ("machine_digest", "0123456789abcdef", "other_machine"),
    ],
)
def test_a_measurement_of_something_else_than_was_trained_fails(
    name: str, other: Any, code: str, params: dict[str, Any], tmp_path: Path
) -> None:
    write_blocks(tmp_path, **{name: other})
    for cell in params["cells"]:
        (found,) = _find(tmp_path, params, cell)
        assert (found.code, found.numbers["found"]) == (code, str(other)[:12])


def test_a_larger_batch_is_what_weak_scaling_asks_for_and_nothing_else_may_differ(
    params: dict[str, Any], tmp_path: Path
) -> None:
    right = setting_of(params)
    weak = _changed(right, "train", global_batch_size=8)
    told = write_blocks(tmp_path)
    arms = [told.arms[0], told.arms[1].model_copy(update={"global_batch_size": 8}), told.arms[2]]
    write_blocks(tmp_path, arms=arms, settings={"1proc": [right], "2proc": [weak]})
    assert _find(tmp_path, params) == []
    write_blocks(tmp_path, arms=arms, settings={"1proc": [right], "2proc": [right]})
    assert _has(_find(tmp_path, params), "other_value", name="train.global_batch_size", found=4, expected=8)


def test_kernels_and_environment_are_printed_as_the_ranks_recorded_them(params: dict[str, Any], tmp_path: Path) -> None:
    results = collect_results(outputs_of(tmp_path, params))
    assert line_of(results, "Kernels") == "attention sdpa, deterministic False, matmul_precision highest"
    assert line_of(results, "Environment of the ranks") == "OMP_NUM_THREADS 1"


def test_a_package_that_one_cell_alone_computes_with_is_no_other_work_and_is_printed_with_its_version(
    params: dict[str, Any], tmp_path: Path
) -> None:
    assert line_of(collect_results(outputs_of(tmp_path, params)), "Versions") == "python 3.11.9, torch 2.15.0"
    for part in ("0-8", "8-16"):
        edit_segment(tmp_path, "2proc", part, settings=[setting_of(params) | {"packages": {"deepspeed": "1.0"}}])
    outputs = outputs_of(tmp_path, params)
    assert find_setting_problems(outputs, "2proc") == []
    assert line_of(collect_results(outputs), "Versions") == "python 3.11.9, torch 2.15.0, deepspeed 1.0"


@pytest.mark.parametrize("changed", [{"packages": {"deepspeed": "1.1"}}, {"options": {"stage": 3}}])
def test_starts_of_one_cell_with_other_versions_or_options_fail(
    changed: Setting, params: dict[str, Any], tmp_path: Path
) -> None:
    """A launch that went on after `pip install`, and blocks that were timed before it."""
    right = setting_of(params) | {"packages": {"deepspeed": "1.0"}, "options": {"stage": 1}}
    for part in ("0-8", "8-16"):
        edit_segment(tmp_path, "2proc", part, settings=[right])
    write_blocks(tmp_path, settings={"1proc": [setting_of(params)], "2proc": [right]})
    assert _find(tmp_path, params) == []
    ((section, value),) = changed.items()
    other = {"name": f"{section}.{next(iter(value))}", "found": next(iter(value.values()))}
    write_blocks(tmp_path, settings={"1proc": [setting_of(params)], "2proc": [right | changed]})
    assert _has(_find(tmp_path, params), "other_value", at="2proc, timed blocks", **other)
    write_blocks(tmp_path, settings={"1proc": [setting_of(params)], "2proc": [right]})
    edit_segment(tmp_path, "2proc", "8-16", settings=[right, right | changed])
    assert _has(_find(tmp_path, params), "other_value", at="2proc 8-16 epoch 1", **other)


def test_an_adapter_is_named_in_the_report_as_it_was_trained(params: dict[str, Any], tmp_path: Path) -> None:
    assert "adapter" not in line_of(collect_results(outputs_of(tmp_path, params)), "Work")
    lora = {"kind": "lora", "rank": 16, "alpha": 32.0, "targets": ["q_proj", "v_proj"], "base": "nf4"}
    edit_json(
        tmp_path / "runs" / "1proc" / "run.json", train=setting_of(params)["train"] | {"epochs": 1, "adapter": lora}
    )
    results = collect_results(outputs_of(tmp_path, params))
    assert results.comparison.train["adapter.rank"] == 16
    work = line_of(results, "Work")
    assert all(one in work for one in ("rank 16", "alpha 32", "q_proj, v_proj", "nf4"))


def test_blocks_and_trainings_of_other_rows_of_the_same_numbers_fail(params: dict[str, Any], tmp_path: Path) -> None:
    held = {part: json.loads((tmp_path / f"slices/{part}/manifest.json").read_text())["digest"] for part in RANGES}
    write_blocks(tmp_path, rows_digests=held)
    assert _find(tmp_path, params) == []
    write_blocks(tmp_path, rows_digests=held | {RANGES[0]: "ab" * 32})
    assert _has(_find(tmp_path, params), "other_rows", where="2proc, timed blocks", range=RANGES[0], found="ab" * 6)
    write_blocks(tmp_path, rows_digests=held | {"0-99": "ab" * 32})
    assert _has(_find(tmp_path, params), "range_not_asked_for", range="0-99")
    write_blocks(tmp_path, rows_digests=held)
    run = tmp_path / "runs/2proc/run.json"
    entries = json.loads(run.read_text())["segments"]
    edit_json(run, segments=[entries[0] | {"rows_digest": "cd" * 32}, *entries[1:]])
    assert _has(_find(tmp_path, params), "other_rows", where="2proc", range="0-8", found="cd" * 6)
