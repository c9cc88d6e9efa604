"""What Python runs at its start is held on each machine: two machines may differ, and one may not from itself."""

from pathlib import Path
from typing import Any

import pytest

from tasks.gates.checks import check_gates
from tasks.gates.setting import find_setting_problems
from tests.tasks.reporting.blocks import write_blocks
from tests.tasks.reporting.comparison import PARAMS, edit_segment, outputs_of, setting_of, write_comparison

DEBIANS, OWN = ({"sitecustomize": digit * 64, "usercustomize": None} for digit in "ab")
GATE = "Same work in every cell"
THREE = PARAMS | {"cells": PARAMS["cells"] | {"4proc": {"strategy": "ddp", "world_size": 4}}}
SECONDS = {"1proc": [6.0, 4.0], "2proc": [4.0, 2.4], "4proc": [2.5, 1.5]}


def _record(folder: Path, params: dict[str, Any], cell: str, **machines: Any) -> None:
    """Have the cell's training say what ran on which machines, in each of its segments."""
    for part in params["ranges"]:
        edit_segment(folder, cell, part, settings=[setting_of(params) | {"run_at_start": machines}])


def _judge(folder: Path, params: dict[str, Any]) -> dict[str, str]:
    """Return cell -> verdict of the gate."""
    (gate,) = [gate for gate in check_gates(outputs_of(folder, params)) if gate.name == GATE]
    return {one.cell: one.verdict for one in gate.findings}


def test_a_second_machine_may_run_what_the_first_does_not(params: dict[str, Any], tmp_path: Path) -> None:
    """All ranks of the baseline are on one machine, those of the cell on both: each runs what it always does."""
    _record(tmp_path, params, "1proc", first=DEBIANS)
    _record(tmp_path, params, "2proc", first=DEBIANS, second=OWN)
    timed = setting_of(params) | {"run_at_start": {"second": OWN, "first": DEBIANS}}
    write_blocks(
        tmp_path, settings={"1proc": [setting_of(params) | {"run_at_start": {"second": OWN}}], "2proc": [timed]}
    )
    assert _judge(tmp_path, params) == {"1proc": "passed", "2proc": "passed"}


def test_one_machine_that_ran_something_else_in_another_cell_fails(params: dict[str, Any], tmp_path: Path) -> None:
    _record(tmp_path, params, "1proc", first=DEBIANS)
    _record(tmp_path, params, "2proc", first=OWN, second=OWN)
    assert _judge(tmp_path, params) == {"1proc": "passed", "2proc": "failed"}
    found = find_setting_problems(outputs_of(tmp_path, params), "2proc")
    first = {"machine": "first", "module": "sitecustomize", "found": "b" * 12, "expected": "a" * 12}
    assert {one.code for one in found} == {"other_start"}
    assert found[0].numbers == first | {"where": "2proc 0-8 epoch 1", "whose": "1proc 0-8 epoch 1"}
    assert {one.numbers["machine"] for one in found} == {"first"}


def test_a_machine_without_the_baseline_is_held_between_the_others_and_both_fail(tmp_path: Path) -> None:
    """Which of the two ran what it should not have nobody knows."""
    params = write_comparison(tmp_path, params=THREE, seconds=SECONDS)
    for cell, modules in (("1proc", {}), ("2proc", {"second": OWN}), ("4proc", {"second": DEBIANS})):
        _record(tmp_path, params, cell, first=DEBIANS, **modules)
    assert _judge(tmp_path, params) == {"1proc": "passed", "2proc": "failed", "4proc": "failed"}


@pytest.mark.parametrize("where", ["training", "timed blocks"])
def test_starts_of_one_cell_that_differ_on_one_machine_fail(where: str, params: dict[str, Any], tmp_path: Path) -> None:
    _record(tmp_path, params, "1proc", first=DEBIANS)
    _record(tmp_path, params, "2proc", first=DEBIANS, second=OWN)
    other = setting_of(params) | {"run_at_start": {"first": DEBIANS, "second": DEBIANS}}
    if where == "training":
        edit_segment(tmp_path, "2proc", "8-16", settings=[other])
    else:
        right = setting_of(params) | {"run_at_start": {"first": DEBIANS}}
        write_blocks(tmp_path, settings={"1proc": [right], "2proc": [other]})
    (found,) = find_setting_problems(outputs_of(tmp_path, params), "2proc")
    assert found.code == "other_start"
    assert (found.numbers["machine"], found.numbers["whose"]) == ("second", "2proc 0-8 epoch 1")


def test_a_machine_that_was_named_anew_hides_nothing(params: dict[str, Any], tmp_path: Path) -> None:
    """As a container is whenever it is made."""
    _record(tmp_path, params, "1proc", first=DEBIANS)
    _record(tmp_path, params, "2proc", renamed=DEBIANS)
    assert _judge(tmp_path, params) == {"1proc": "passed", "2proc": "passed"}
    _record(tmp_path, params, "2proc", renamed=OWN)
    assert _judge(tmp_path, params) == {"1proc": "passed", "2proc": "failed"}


def test_a_cell_without_a_record_of_it_fails(params: dict[str, Any], tmp_path: Path) -> None:
    _record(tmp_path, params, "2proc")
    (found, _) = find_setting_problems(outputs_of(tmp_path, params), "2proc")
    assert found.code == "no_record_of_start"
