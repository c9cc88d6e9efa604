"""Each gate: passes on the comparison as written, fails on what it is there for, and says the numbers."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.gates.checks import check_gates
from tests.tasks.reporting.comparison import (
    PARAMS,
    edit_json,
    edit_ledger,
    edit_segment,
    edit_steps,
    make_checked_update,
    outputs_of,
    write_comparison,
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


def gates_of(folder, params):
    return {gate.name: gate for gate in check_gates(outputs_of(folder, params))}


def failed(gates):
    return [name for name, gate in gates.items() if gate.verdict == "failed"]


def test_every_gate_passes_on_a_clean_comparison(tmp_path, params):
    gates = gates_of(tmp_path, params)
    assert {name: gate.outcome for name, gate in gates.items()} == dict.fromkeys(
        [
            *(EQUIVALENCE, SYNCHRONISED, SAME_PARAMETERS, NO_BREAK, FROM_BASE, CURVES, EVALUATED, ASKED_FOR),
            *(SAME_WORK, SAME_ROWS, ONCE, HELD_OUT, TOKENS, DATA_BOUND, ONLY_STEPS, OWN_DEVICE, PLAUSIBLE),
        ],
        "passed",
    )
    assert {one.code for gate in gates.values() for one in gate.findings} == {"passed"}
    of_each = [NO_BREAK, FROM_BASE, EVALUATED, ASKED_FOR, SAME_WORK, ONCE, HELD_OUT, TOKENS, DATA_BOUND, ONLY_STEPS]
    of_each += [OWN_DEVICE, EQUIVALENCE]
    for name, gate in gates.items():
        judged = [found.cell for found in gate.findings]
        assert judged == (["1proc", "2proc"] if name in of_each else ["2proc"]), name


def _swap_rows(arrays):
    arrays["row_id"][[0, 7]] = arrays["row_id"][[7, 0]]
    arrays["num_tokens"][[0, 7]] = arrays["num_tokens"][[7, 0]]


def _foreign_row(arrays):
    arrays["row_id"][0] = 16


Break = Callable[[Path], None]


def _run_json(cell, **changes):
    return lambda folder: edit_json(folder / "runs" / cell / "run.json", **changes)


def _segment(cell, **changes):
    return lambda folder: edit_segment(folder, cell, **changes)


def _ledger(change):
    return lambda folder: edit_ledger(folder, "2proc", change)


def _steps(cell, **changes):
    return lambda folder: edit_steps(folder, cell, **changes)


def _forget_segment(folder):
    path = folder / "runs" / "2proc" / "run.json"
    edit_json(path, segments=json.loads(path.read_text())["segments"][:1])


@pytest.mark.parametrize(
    ("defect", "fails", "code"),
    [
        (_segment("2proc", parameter_checksums=["03" * 8]), [SAME_PARAMETERS], "checksums_missing"),
        (_segment("2proc", optimizer_checksums=["opt3", "b"]), [SAME_PARAMETERS], "other_optimizer"),
        (_segment("2proc", part="8-16", start_optimizer_checksum="x"), [NO_BREAK], "other_optimizer"),
        (_segment("2proc", part="8-16", start_checksum="x"), [NO_BREAK], "other_weights"),
        (_run_json("2proc", base_model_digest="e1" * 32), [SAME_WORK], "other_start_weights"),
        (_run_json("2proc", numerics_version=7), [SAME_WORK], "other_numerics_version"),
        (_run_json("1proc", machine_digest="e1" * 32), [SAME_WORK], "other_machine"),
        (_run_json("2proc", global_batch_size=8), [SAME_WORK], "other_samples_per_optimizer_step"),
        (_steps("2proc", learning_rate=5e-4), [ASKED_FOR, SAME_WORK], "other_learning_rate"),
        (_steps("2proc", num_samples=2), [SAME_WORK], "other_samples"),
        (_ledger(_swap_rows), [ASKED_FOR, SAME_ROWS], "other_rows"),
        (_ledger(_foreign_row), [ASKED_FOR, SAME_ROWS, ONCE, HELD_OUT], "not_once"),
        (_forget_segment, [CURVES, EVALUATED, SAME_WORK, ONCE, TOKENS, PLAUSIBLE], "other_segments"),
        (_segment("2proc", num_tokens=30), [TOKENS], "other_tokens"),
        (_segment("2proc", data_wait_seconds=0.5), [DATA_BOUND], "waited_in_training"),
        (lambda folder: edit_json(folder / "machine.json", num_cpus=1), [OWN_DEVICE], "too_few_devices"),
    ],
)  # fmt: skip
def test_a_gate_fails_on_the_defect_it_is_there_for_and_no_other_does(tmp_path, params, defect, fails, code):
    defect(tmp_path)
    gates = gates_of(tmp_path, params)
    assert failed(gates) == fails
    assert code in {one.code for name in fails for one in gates[name].findings}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"start_problem": "other weights"}, "other_start"),
        ({"compared": {"rows": {"difference": 1e-4, "noise_floor": 0.0, "tolerance": 1e-5}}}, "other_loss"),
        ({"verdict": "not checked", "problem": "no disk", "compared": {}}, "first_update_not_checked"),
        ({"step": 2}, "first_update_not_checked"),
    ],
)
def test_the_first_update_has_to_begin_with_the_base_model_and_its_loss(tmp_path, params, changes, code):
    edit_segment(tmp_path, "2proc", checked_updates=[make_checked_update(1) | changes, make_checked_update(2)])
    found = gates_of(tmp_path, params)[FROM_BASE].findings[1]
    assert (found.code, found.outcome) == (code, "failed" if "other" in code else "not checked")


def test_what_was_compared_is_there_for_machines_and_json_has_no_infinity(tmp_path, params):
    edit_ledger(tmp_path, "2proc", _swap_rows)
    edit_steps(tmp_path, "2proc", loss=float("inf"))
    numbers = {name: gate.findings[-1].numbers for name, gate in gates_of(tmp_path, params).items()}
    # Rows 0 and 7 changed places: each is in a step too many and missing in another.
    assert numbers[SAME_ROWS].items() >= {"steps_compared": 4, "samples_in_other_steps": 4}.items()
    assert numbers[CURVES]["largest_relative_difference"] is None
    assert all(numbers.values())


def test_a_gate_that_compares_cells_is_not_passed_where_there_is_one_cell(tmp_path):
    params = PARAMS | {"cells": {"1proc": PARAMS["cells"]["1proc"]}}
    gates = gates_of(tmp_path, write_comparison(tmp_path, params=params))
    unchecked = [name for name, gate in gates.items() if gate.outcome == "not checked"]
    assert unchecked == [SYNCHRONISED, SAME_PARAMETERS, CURVES, SAME_WORK, SAME_ROWS, PLAUSIBLE]


def _everyone_reads_everything(folder):
    """Both ranks of 2proc learn from all rows: twice the work."""
    for part in ("0-8", "8-16"):
        edit_ledger(folder, "2proc", lambda arrays: arrays.update({k: np.tile(v, 2) for k, v in arrays.items()}), part)


def test_work_done_twice_is_told_per_unit_of_work_where_that_is_possible_and_no_gate_denies_it(tmp_path):
    def tell():
        (found,) = [one for one in gates_of(tmp_path, params)[TOKENS].findings if one.cell == "2proc"]
        return found.true_figure or ""

    params = write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [8.0, 4.8]})
    _everyone_reads_everything(tmp_path)
    assert failed(gates_of(tmp_path, params)) == [ASKED_FOR, SAME_ROWS, ONCE, TOKENS]
    # 126 tokens in 12.8 s against 63 tokens in 10 s.
    assert all(figure in tell() for figure in ("2.00x", "1.56x"))
    edit_segment(tmp_path, "2proc", traffic={})
    assert not tell()
    # 126 tokens in 6.4 s would be 3.1x on 2 ranks.
    params = write_comparison(tmp_path)
    _everyone_reads_everything(tmp_path)
    assert not tell()


def test_a_speedup_of_more_than_linear_is_not_believed(tmp_path):
    # 10 s against 2 x 4.5 s of the ranks' time is a parallel efficiency of 1.11, against 2 x 4.6 s of 1.09.
    params = write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [3.0, 1.5]})
    gates = gates_of(tmp_path, params)
    assert failed(gates) == [PLAUSIBLE]
    (found,) = gates[PLAUSIBLE].findings
    wanted = {"rank_seconds": 9.0, "rank_seconds_of_baseline": 10.0, "least_believed": 10 / 1.1, "efficiency": 10 / 9}
    assert found.code == "trained_beyond_linear"
    assert {name: found.numbers[name] for name in wanted} == pytest.approx(wanted)
    params = write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [3.0, 1.6]})
    (found,) = gates_of(tmp_path, params)[PLAUSIBLE].findings
    # Another gate may withhold it.
    assert (found.outcome, {"efficiency", "speedup"} & found.numbers.keys()) == ("passed", set())
