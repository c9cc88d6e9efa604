"""Each gate: passes on the comparison as written, fails on what it is there for, and says the numbers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.gates.checks import check_gates
from tasks.records.gate import Gate
from tests.tasks.reporting.comparison import (
    FIRST_STEP,
    PARAMS,
    edit_json,
    edit_ledger,
    edit_segment,
    edit_steps,
    outputs_of,
    read_lines,
    segment_folder,
    write_comparison,
    write_lines,
    write_twins,
)

EQUIVALENCE = "Update equivalence"
SYNCHRONISED, SAME_PARAMETERS = "Gradients were synchronised", "Same parameters on all ranks"
NO_BREAK, FROM_BASE, CURVES = "No break between segments", "Starts from the base model", "Loss curves coincide"
EVALUATED, ASKED_FOR, HELD_OUT = (
    "Evaluated what was trained",
    "Steps are those asked for",
    "Held-out rows were held out",
)
SAME_WORK, SAME_ROWS = "Same work in every cell", "Same rows in the same steps"
ONCE, TOKENS = "Every sample exactly once", "Equal tokens"
DATA_BOUND, ONLY_STEPS = "Not data-bound", "Only steps were timed"
OWN_DEVICE = "Every rank has a device of its own"
PLAUSIBLE = "Speedup is plausible"


def gates_of(folder: Path, params: dict[str, Any]) -> dict[str, Gate]:
    return {gate.name: gate for gate in check_gates(outputs_of(folder, params))}


def true_figure(gates: dict[str, Gate]) -> str | None:
    """Return the speedup per unit of work that is given for 2proc."""
    found = gates[TOKENS].find_cell_finding("2proc")
    assert found is not None
    return found.true_figure


def failed(gates: dict[str, Gate]) -> list[str]:
    return [name for name, gate in gates.items() if gate.verdict == "failed"]


def test_every_gate_passes_on_a_clean_comparison(tmp_path: Path, params: dict[str, Any]) -> None:
    gates = gates_of(tmp_path, params)
    assert {name: gate.verdict for name, gate in gates.items()} == dict.fromkeys(
        [
            *(EQUIVALENCE, SYNCHRONISED, SAME_PARAMETERS, NO_BREAK, FROM_BASE, CURVES, EVALUATED, ASKED_FOR),
            *(SAME_WORK, SAME_ROWS, ONCE, HELD_OUT, TOKENS, DATA_BOUND, ONLY_STEPS, OWN_DEVICE, PLAUSIBLE),
        ],
        "passed",
    )
    assert gates[TOKENS].compared == (
        "1proc: 63 tokens, as many as the ranges hold; 2proc: 63 tokens, as many as the ranges hold"
    )
    assert "2proc: 16 samples" in gates[ONCE].compared
    assert gates[DATA_BOUND].compared == (
        "1proc waited for data in 0.2 % of its step time; 2proc waited for data in 0.3 % of its step time"
    )
    of_each = [NO_BREAK, FROM_BASE, EVALUATED, ASKED_FOR, SAME_WORK, ONCE, HELD_OUT, TOKENS, DATA_BOUND, ONLY_STEPS]
    of_each += [OWN_DEVICE, CURVES]
    for name, gate in gates.items():
        judged = [found.cell for found in gate.findings]
        assert judged == (["1proc", "2proc"] if name in of_each else ["2proc"]), name


def _swap_rows(arrays: dict[str, Any]) -> None:
    arrays["row_id"][[0, 7]] = arrays["row_id"][[7, 0]]
    arrays["num_tokens"][[0, 7]] = arrays["num_tokens"][[7, 0]]


def _drop_one(arrays: dict[str, Any]) -> None:
    for name in arrays:
        arrays[name] = arrays[name][1:]


def _double_one(arrays: dict[str, Any]) -> None:
    for name in arrays:
        arrays[name] = np.append(arrays[name], arrays[name][:1])


def _foreign_row(arrays: dict[str, Any]) -> None:
    arrays["row_id"][0] = 16


Break = Callable[[Path], None]


def _run_json(cell: str, **changes: Any) -> Break:
    return lambda folder: edit_json(folder / "runs" / cell / "run.json", **changes)


def _segment(cell: str, **changes: Any) -> Break:
    return lambda folder: edit_segment(folder, cell, **changes)


def _ledger(change: Callable[[dict[str, Any]], None]) -> Break:
    return lambda folder: edit_ledger(folder, "2proc", change)


def _steps(cell: str, **changes: Any) -> Break:
    return lambda folder: edit_steps(folder, cell, **changes)


def _forget_segment(folder: Path) -> None:
    path = folder / "runs" / "2proc" / "run.json"
    edit_json(path, segments=json.loads(path.read_text())["segments"][:1])


@pytest.mark.parametrize(
    ("defect", "fails", "numbers"),
    [
        (_segment("2proc", parameter_checksums=["03" * 8, "b"]), [SAME_PARAMETERS], "2 different checksums on 2 ranks"),
        (_segment("2proc", parameter_checksums=["03" * 8]), [SAME_PARAMETERS], "1 checksums of 2 ranks"),
        (_segment("2proc", optimizer_checksums=["opt3", "b"]), [SAME_PARAMETERS],
         "2 different checksums of optimizers"),
        (_segment("2proc", part="8-16", start_optimizer_checksum="x"), [NO_BREAK], "with another optimizer state than"),
        (_segment("2proc", start_checksum="base"), [NO_BREAK, FROM_BASE], "2proc: started from weights base,"),
        (_segment("2proc", part="8-16", start_checksum="x"), [NO_BREAK], "2proc 8-16 epoch 1: started with other"),
        (_steps("2proc", loss=3.91), [CURVES], "loss differs by 2.6e-03 at step 2, at most 2e-06 allowed"),
        (_run_json("2proc", base_model_digest="e1" * 32), [SAME_WORK], "2proc: start weights e1e1e1e1e1e1, expected"),
        (_run_json("2proc", code_digest="e1" * 32), [SAME_WORK], "2proc: code e1e1"),
        (_run_json("1proc", machine_digest="e1" * 32), [SAME_WORK], "1proc: machine e1e1"),
        (_run_json("2proc", global_batch_size=8), [SAME_WORK], "2proc: samples per optimizer step 8, expected 4"),
        (_steps("2proc", learning_rate=5e-4), [ASKED_FOR, SAME_WORK],
         "2proc: learning rate 0.0005 at step 2, 1proc 0.001"),
        (_steps("2proc", num_samples=2), [SAME_WORK], "2proc: samples 2 at step 2, 1proc 4"),
        (_ledger(_swap_rows), [ASKED_FOR, SAME_ROWS], "2proc 0-8 epoch 1: other rows from step 1 on"),
        (_ledger(_drop_one), [ASKED_FOR, SAME_ROWS, ONCE, TOKENS],
         "of 8 rows 1 were left out and 0 used more than once"),
        (_ledger(_double_one), [ASKED_FOR, SAME_ROWS, ONCE, TOKENS],
         "of 8 rows 0 were left out and 1 used more than once"),
        (_ledger(_foreign_row), [ASKED_FOR, SAME_ROWS, ONCE, HELD_OUT],
         "of 8 rows 1 were left out and 0 used more than once; 1 rows of no"),
        (_forget_segment, [CURVES, EVALUATED, SAME_WORK, ONCE, TOKENS, PLAUSIBLE],
         "0-8 epoch 1, asked for 0-8 epoch 1, 8-16"),
        (_segment("2proc", num_tokens=30), [TOKENS], "31 tokens in the ledger and 30 reported, the range holds 31"),
        (_segment("2proc", data_wait_seconds=0.5), [DATA_BOUND], "2proc waited for data in 8.0 % of its step time"),
        (lambda folder: edit_json(folder / "machine.json", num_cpus=1), [OWN_DEVICE], "needs 2 CPUs and shares 1"),
    ],
)  # fmt: skip
def test_a_gate_fails_on_the_defect_it_is_there_for(
    tmp_path: Path, params: dict[str, Any], defect: Break, fails: list[str], numbers: str
) -> None:
    defect(tmp_path)
    gates = gates_of(tmp_path, params)
    assert failed(gates) == fails
    assert any(numbers in gate.compared for gate in gates.values()), [gates[name].compared for name in fails]


@pytest.mark.parametrize(
    ("loss", "verdict", "says"),
    [
        (4.00003, "passed", "(7.5e-06 apart); base model on the 4 rows (15 tokens) of step 1, in fp32: 4.000000"),
        (4.00005, "failed", "loss 4.000050 at step 1, the base model has 4.000000 on the 4 rows (15 tokens) of step 1"),
        (32.0, "failed", "of step 1: 8 times as much, at most 1e-05 apart allowed in fp32"),
        (float("nan"), "failed", "nan times as much"),
    ],
)
def test_the_first_loss_is_the_base_models_on_the_same_rows(
    tmp_path: Path, params: dict[str, Any], loss: float, verdict: str, says: str
) -> None:
    for cell in ("1proc", "2proc"):
        edit_steps(tmp_path, cell, index=0, loss=loss)
    gate = gates_of(tmp_path, params)[FROM_BASE]
    assert gate.verdict == verdict
    assert says in gate.compared
    for found in gate.findings:
        assert found.numbers["base_model_loss"] == 4.0
        assert found.numbers["loss_at_step_1"] == (None if math.isnan(loss) else loss)


@pytest.mark.parametrize(("precision", "allowed"), [("bf16", 0.01), ("fp16", 0.001)])
def test_16_bit_arithmetic_is_given_more_room_at_the_first_step(tmp_path: Path, precision: str, allowed: float) -> None:
    params = write_comparison(tmp_path, params=PARAMS | {"train": PARAMS["train"] | {"precision": precision}})
    for factor, verdict in ((0.9, "passed"), (1.1, "failed")):
        for cell in ("1proc", "2proc"):
            edit_steps(tmp_path, cell, index=0, loss=4.0 * (1 + factor * allowed))
        assert gates_of(tmp_path, params)[FROM_BASE].verdict == verdict


def test_without_a_loss_of_the_base_model_the_gate_says_why_it_checked_nothing(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    first = FIRST_STEP | {"range": "0-8", "loss": None, "why_no_loss": "the model has dropout"}
    edit_json(tmp_path / "evaluation" / "evaluation.json", first_step=first)
    gate = gates_of(tmp_path, params)[FROM_BASE]
    assert gate.verdict == "not checked"
    words = "the start weights are the base model's, but the model has dropout"
    assert gate.compared == f"1proc: {words}; 2proc: {words}"
    edit_segment(tmp_path, "2proc", start_checksum="e1" * 8)
    gate = gates_of(tmp_path, params)[FROM_BASE]
    assert gate.verdict == "failed"
    assert gate.compared == "2proc: started from weights e1e1e1e1e1e1, the base model's are 010101010101"


def test_what_was_compared_is_there_for_machines_in_each_cells_finding(tmp_path: Path, params: dict[str, Any]) -> None:
    edit_ledger(tmp_path, "2proc", _swap_rows)
    edit_steps(tmp_path, "2proc", loss=float("inf"))
    gates = gates_of(tmp_path, params)
    numbers = {name: [found.numbers for found in gate.findings] for name, gate in gates.items()}
    assert numbers[TOKENS] == [{"tokens": 63, "expected": 63}] * 2
    assert numbers[ONCE] == [{"samples": 16, "left_out": 0, "repeated": 0, "of_no_such_range": 0}] * 2
    # Rows 0 and 7 changed places: each is in a step too many and missing in another.
    assert numbers[SAME_ROWS] == [{"steps_compared": 4, "samples_in_other_steps": 4}]
    assert [one["data_wait_share"] for one in numbers[DATA_BOUND]] == [pytest.approx(0.002), pytest.approx(0.02 / 6.4)]
    assert numbers[CURVES][1]["largest_relative_difference"] is None  # JSON has no infinity
    assert numbers[SAME_PARAMETERS] == [{"segments_compared": 2, "most_different_checksums": 1}]
    assert numbers[OWN_DEVICE] == [
        {"needed": 1, "there": 2, "times_asked": 0},
        {"needed": 2, "there": 2, "times_asked": 0},
    ]
    assert all(all(found) for found in numbers.values())


def test_more_ranks_than_gpus_say_nothing_about_scaling(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, device="cuda")
    edit_json(tmp_path / "machine.json", gpus=[{"name": "H100", "memory_gib": 79.6}])
    gates = gates_of(tmp_path, params)
    assert failed(gates) == [OWN_DEVICE]
    assert "2proc needs 2 GPUs and shares 1" in gates[OWN_DEVICE].compared


def test_a_gate_that_compares_cells_is_not_passed_where_there_is_one_cell(tmp_path: Path) -> None:
    params = PARAMS | {"cells": {"1proc": PARAMS["cells"]["1proc"]}}
    gates = gates_of(tmp_path, write_comparison(tmp_path, params=params))
    unchecked = [name for name, gate in gates.items() if gate.verdict == "not checked"]
    assert unchecked == [EQUIVALENCE, SYNCHRONISED, SAME_PARAMETERS, SAME_WORK, SAME_ROWS, PLAUSIBLE]
    assert all(gates[name].compared.startswith(("only one cell", "no cell")) for name in unchecked)


def test_beyond_the_twins_the_loss_may_part_a_little_but_not_on_average(tmp_path: Path, params: dict[str, Any]) -> None:
    def write_losses(cell: str, factor: float) -> None:
        for part, first in (("0-8", 1), ("8-16", 151)):
            segment = segment_folder(tmp_path, cell, part)
            line = read_lines(segment)[0]
            losses = [4.0 * (factor if first + index > 100 else 1) for index in range(150)]
            edit_segment(tmp_path, cell, part, num_steps=150, traffic={})
            write_lines(segment, [line | {"step": first + index, "loss": loss} for index, loss in enumerate(losses)])

    write_losses("1proc", 1.0)
    write_twins(tmp_path, losses=[4.0] * 4)
    write_losses("2proc", 1.005)
    assert CURVES not in failed(gates_of(tmp_path, params))
    write_losses("2proc", 1.05)
    gates = gates_of(tmp_path, params)
    assert CURVES in failed(gates)
    assert "mean loss of steps 99 to 114 differs by 4.4e-02, at most 3e-02 allowed" in gates[CURVES].compared


def _everyone_reads_everything(folder: Path) -> None:
    """Both ranks of 2proc learn from all rows: twice the work."""
    for part in ("0-8", "8-16"):
        edit_ledger(folder, "2proc", lambda arrays: arrays.update({k: np.tile(v, 2) for k, v in arrays.items()}), part)


def test_work_done_twice_is_told_per_unit_of_work(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [8.0, 4.8]})
    _everyone_reads_everything(tmp_path)
    gates = gates_of(tmp_path, params)
    assert failed(gates) == [ASKED_FOR, SAME_ROWS, ONCE, TOKENS]
    # 126 tokens in 12.8 s against 63 tokens in 10 s.
    assert true_figure(gates) == "2proc did 2.00x the work of 1proc; per unit of work it is 1.56x as fast"


def test_a_figure_per_unit_of_work_that_is_not_possible_either_is_not_given(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    _everyone_reads_everything(tmp_path)  # 126 tokens in 6.4 s would be 3.1x on 2 ranks
    assert true_figure(gates_of(tmp_path, params)) is None


def test_no_figure_per_unit_of_work_where_the_gradients_were_not_synchronised(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [8.0, 4.8]})
    _everyone_reads_everything(tmp_path)
    edit_segment(tmp_path, "2proc", traffic={})
    assert true_figure(gates_of(tmp_path, params)) is None


def test_a_speedup_of_more_than_linear_is_not_believed(tmp_path: Path) -> None:
    # 10 s against 2 x 4.5 s of the ranks' time is a parallel efficiency of 1.11, against 2 x 4.6 s of 1.09.
    params = write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [3.0, 1.5]})
    gates = gates_of(tmp_path, params)
    assert failed(gates) == [PLAUSIBLE]
    assert gates[PLAUSIBLE].compared == (
        "2proc took 9.00 s of its ranks' time (train seconds x ranks), 1proc 10.0 s: a parallel efficiency of 1.11, "
        "above 1.1 is not possible; 1proc probably shared the machine with something else or did more work. Train all "
        "cells again on an idle machine: rm -rf .work/runs, then dvc repro -f -s train, then make compare"
    )
    (found,) = gates[PLAUSIBLE].findings
    assert found.numbers == {"rank_seconds": 9.0, "least_believed": pytest.approx(10 / 1.1)}
    params = write_comparison(tmp_path / "just", seconds={"1proc": [6.0, 4.0], "2proc": [3.0, 1.6]})
    assert failed(gates_of(tmp_path / "just", params)) == []


def test_the_plausible_gate_prints_no_efficiency_that_another_gate_withholds(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    edit_segment(tmp_path, "2proc", parameter_checksums=["a", "b"])
    gate = gates_of(tmp_path, params)[PLAUSIBLE]
    assert (gate.verdict, gate.compared) == (
        "passed",
        "time of all ranks together (train seconds x ranks): 1proc 10.0 s, 2proc 12.8 s; at least 9.09 s is believed",
    )
