"""Each gate: passes on the comparison as written, fails on what it is there for, and says the numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.reporting.gate import Gate
from tasks.reporting.gates import check_gates
from tests.tasks.reporting.comparison import (
    PARAMS,
    edit_json,
    edit_ledger,
    edit_segment,
    edit_steps,
    outputs_of,
    segment_folder,
    write_comparison,
)

SYNCHRONISED, SAME_PARAMETERS = "Gradients were synchronised", "Same parameters on all ranks"
NO_BREAK, FROM_BASE, CURVES = "No break between segments", "Starts from the base model", "Loss curves coincide"
SAME_WORK, SAME_ROWS = "Same work in every cell", "Same rows in the same steps"
ONCE, TOKENS = "Every sample exactly once", "Equal tokens"
DATA_BOUND, OWN_DEVICE = "Not data-bound", "Every rank has a device of its own"


def gates_of(folder: Path, params: dict[str, Any]) -> dict[str, Gate]:
    return {gate.name: gate for gate in check_gates(outputs_of(folder, params))}


def failed(gates: dict[str, Gate]) -> list[str]:
    return [name for name, gate in gates.items() if gate.verdict == "failed"]


def test_every_gate_passes_on_a_clean_comparison(tmp_path: Path, params: dict[str, Any]) -> None:
    gates = gates_of(tmp_path, params)
    assert {name: gate.verdict for name, gate in gates.items()} == dict.fromkeys(
        [
            *(SYNCHRONISED, SAME_PARAMETERS, NO_BREAK, FROM_BASE, CURVES, SAME_WORK),
            *(SAME_ROWS, ONCE, TOKENS, DATA_BOUND, OWN_DEVICE),
        ],
        "passed",
    )
    assert "63 tokens" in gates[TOKENS].compared
    assert "32 samples" in gates[ONCE].compared
    assert "1proc 0.2 %, 2proc 0.3 %" in gates[DATA_BOUND].compared


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


def _both_start_at(loss: float) -> Break:
    def change(folder: Path) -> None:
        for cell in ("1proc", "2proc"):
            edit_steps(folder, cell, index=0, loss=loss)

    return change


def _forget_segment(folder: Path) -> None:
    path = folder / "runs" / "2proc" / "run.json"
    edit_json(path, segments=json.loads(path.read_text())["segments"][:1])


@pytest.mark.parametrize(
    ("defect", "fails", "numbers"),
    [
        (_segment("2proc", num_all_reduces=0, num_all_reduce_bytes=0), [SYNCHRONISED], "0 all-reduces in 2 optimizer"),
        (_segment("2proc", num_all_reduces=4), [SYNCHRONISED], "2 all-reduces per optimizer step, at most 1"),
        (_segment("2proc", num_all_reduce_bytes=4000), [SYNCHRONISED], "0.50 times the gradient's bytes"),
        (_segment("1proc", num_all_reduces=2), [SYNCHRONISED], "one rank, yet 2 all-reduces"),
        (_segment("2proc", parameter_checksums=["03" * 8, "b"]), [SAME_PARAMETERS], "2 different checksums on 2 ranks"),
        (_segment("2proc", parameter_checksums=["03" * 8]), [SAME_PARAMETERS], "1 checksums of 2 ranks"),
        (_segment("2proc", start_checksum="base"), [NO_BREAK], "2proc: started from weights base, expected 0101"),
        (_segment("2proc", part="8-16", start_checksum="x"), [NO_BREAK], "2proc 8-16 epoch 1: started with other"),
        (_both_start_at(6.0), [FROM_BASE], "loss 6.0000 at step 1, base model 4.1000"),
        (_steps("2proc", loss=3.91), [CURVES], "loss differs by 2.6e-03 at step 2, at most 1e-04 allowed in fp32"),
        (_run_json("2proc", base_model_digest="e1" * 32), [SAME_WORK], "2proc: start weights e1e1e1e1e1e1, expected"),
        (_run_json("2proc", code_digest="e1" * 32), [SAME_WORK], "2proc: code e1e1"),
        (_run_json("1proc", machine_digest="e1" * 32), [SAME_WORK], "1proc: machine e1e1"),
        (_run_json("2proc", global_batch_size=8), [SAME_WORK], "2proc: samples per optimizer step 8, expected 4"),
        (_steps("2proc", learning_rate=1e-3), [SAME_WORK], "2proc: learning rate 0.001 at step 2, 1proc 0.0005"),
        (_steps("2proc", num_samples=2), [SAME_WORK], "2proc: samples 2 at step 2, 1proc 4"),
        (_ledger(_swap_rows), [SAME_ROWS], "2proc 0-8 epoch 1: other rows from step 1 on"),
        (_ledger(_drop_one), [SAME_ROWS, ONCE, TOKENS], "of 8 rows 1 were left out and 0 used more than once"),
        (_ledger(_double_one), [SAME_ROWS, ONCE, TOKENS], "of 8 rows 0 were left out and 1 used more than once"),
        (_ledger(_foreign_row), [SAME_ROWS, ONCE], "of 8 rows 1 were left out and 0 used more than once; 1 rows of no"),
        (_forget_segment, [CURVES, SAME_WORK, ONCE, TOKENS], "trained 0-8 epoch 1, asked for 0-8 epoch 1, 8-16"),
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


def test_the_same_problem_in_every_segment_is_told_once(tmp_path: Path, params: dict[str, Any]) -> None:
    for part in ("0-8", "8-16"):
        edit_segment(tmp_path, "2proc", part, num_all_reduces=4)
    assert gates_of(tmp_path, params)[SYNCHRONISED].compared == (
        "2proc 0-8 epoch 1 and 1 other segment: 2 all-reduces per optimizer step, at most 1 for one exchange of the "
        "gradient: the ranks synchronise on more than the last of 2 micro-batches"
    )


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
    assert unchecked == [SYNCHRONISED, SAME_PARAMETERS, CURVES, SAME_WORK, SAME_ROWS]
    assert all(gates[name].compared.startswith(("only one cell", "no cell")) for name in unchecked)


def test_rounding_may_grow_over_a_long_run_where_other_work_may_not(tmp_path: Path, params: dict[str, Any]) -> None:
    def write_losses(cell: str, factor: float) -> None:
        for part, first in (("0-8", 1), ("8-16", 151)):
            path = segment_folder(tmp_path, cell, part) / "steps.jsonl"
            line = json.loads(path.read_text().splitlines()[0])
            losses = [4.0 * (factor if first + index > 100 else 1) for index in range(150)]
            edit_segment(tmp_path, cell, part, num_steps=150, num_all_reduces=0)
            lines = [line | {"step": first + index, "loss": loss} for index, loss in enumerate(losses)]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    write_losses("1proc", 1.0)
    write_losses("2proc", 1.005)
    assert CURVES not in failed(gates_of(tmp_path, params))
    write_losses("2proc", 1.02)
    gates = gates_of(tmp_path, params)
    assert CURVES in failed(gates)
    assert "2.0e-02 on average after step 100" in gates[CURVES].compared


def _everyone_reads_everything(folder: Path) -> None:
    """Both ranks of 2proc learn from all rows: twice the work."""
    for part in ("0-8", "8-16"):
        edit_ledger(folder, "2proc", lambda arrays: arrays.update({k: np.tile(v, 2) for k, v in arrays.items()}), part)


def test_work_done_twice_is_told_per_unit_of_work(tmp_path: Path, params: dict[str, Any]) -> None:
    _everyone_reads_everything(tmp_path)
    gates = gates_of(tmp_path, params)
    assert failed(gates) == [SAME_ROWS, ONCE, TOKENS]
    # 126 tokens in 6.4 s against 63 tokens in 10 s.
    assert gates[TOKENS].true_figure == "2proc did 2.00x the work of 1proc; per unit of work it is 3.12x as fast"


def test_no_figure_per_unit_of_work_where_the_gradients_were_not_synchronised(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    _everyone_reads_everything(tmp_path)
    edit_segment(tmp_path, "2proc", num_all_reduces=0)
    assert gates_of(tmp_path, params)[TOKENS].true_figure is None
