"""Each gate: passes on the comparison as written, fails on what it is there for, and says the numbers."""

import json

import numpy as np
import pytest

from tasks.gates.checks import CHECKS, check_gates
from tests.tasks.gates.conftest import require
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

SYNCHRONISED, SAME_PARAMETERS = "Gradients were synchronised", "Same parameters on all ranks"
NO_BREAK, FROM_BASE, CURVES = "No break between segments", "Starts from the base model", "Loss curves coincide"
EVALUATED, ASKED_FOR = "Evaluated what was trained", "Steps are those asked for"
HELD_OUT = "Held-out rows were held out"
SAME_WORK, SAME_ROWS = "Same work in every cell", "Same rows in the same steps"
ONCE, TOKENS = "Every sample exactly once", "Equal tokens"
DATA_BOUND, PLAUSIBLE = "Not data-bound", "Speedup is plausible"
OWN_DEVICE = "Every rank has a device of its own"


def gates_of(folder, params):
    return {gate.name: gate for gate in check_gates(outputs_of(folder, params))}


def failed(gates):
    return [name for name, gate in gates.items() if gate.outcome == "failed"]


def test_every_gate_passes_on_a_clean_comparison(tmp_path, params):
    gates = gates_of(tmp_path, params)
    assert {name: gate.outcome for name, gate in gates.items()} == dict.fromkeys(
        [check.name for check in CHECKS], "passed"
    )
    assert {one.code for gate in gates.values() for one in gate.findings} == {"passed"}
    compare = (SYNCHRONISED, SAME_PARAMETERS, CURVES, SAME_ROWS, PLAUSIBLE)
    for name, gate in gates.items():
        assert [found.cell for found in gate.findings] == ["1proc", "2proc"][name in compare :], name


def _swap_rows(arrays):
    arrays["row_id"][[0, 7]] = arrays["row_id"][[7, 0]]
    arrays["num_tokens"][[0, 7]] = arrays["num_tokens"][[7, 0]]


def _foreign_row(arrays):
    arrays["row_id"][0] = 16


def _edit_run(folder, cell, **changes):
    edit_json(folder / "runs" / cell / "run.json", **changes)


def _forget_segment(folder, cell):
    segments = json.loads((folder / "runs" / cell / "run.json").read_text())["segments"]
    _edit_run(folder, cell, segments=segments[:1])


def _edit_machine(folder, _, **changes):
    edit_json(folder / "machine.json", **changes)


@pytest.mark.parametrize(
    ("edit", "changes", "fails", "code"),
    [
        (edit_segment, {"parameter_checksums": ["03" * 8]}, [SAME_PARAMETERS], "checksums_missing"),
        (edit_segment, {"optimizer_checksums": ["opt3", "b"]}, [SAME_PARAMETERS], "other_optimizer"),
        (edit_segment, {"part": "8-16", "start_optimizer_checksum": "x"}, [NO_BREAK], "other_optimizer"),
        (edit_segment, {"part": "8-16", "start_checksum": "x"}, [NO_BREAK], "other_weights"),
        (_edit_run, {"base_model_digest": "e1" * 32}, [SAME_WORK], "other_start_weights"),
        (_edit_run, {"numerics_version": 7}, [SAME_WORK], "other_numerics_version"),
        (_edit_run, {"machine_digest": "e1" * 32}, [SAME_WORK], "other_machine"),
        (_edit_run, {"global_batch_size": 8}, [SAME_WORK], "other_samples_per_optimizer_step"),
        (edit_steps, {"learning_rate": 5e-4}, [ASKED_FOR, SAME_WORK], "other_learning_rate"),
        (edit_steps, {"num_samples": 2}, [SAME_WORK], "other_samples"),
        (edit_ledger, {"change": _swap_rows}, [ASKED_FOR, SAME_ROWS], "other_rows"),
        (edit_ledger, {"change": _foreign_row}, [ASKED_FOR, SAME_ROWS, ONCE, HELD_OUT], "not_once"),
        (_forget_segment, {}, [CURVES, EVALUATED, SAME_WORK, ONCE, TOKENS, PLAUSIBLE], "other_segments"),
        (edit_segment, {"num_tokens": 30}, [TOKENS], "other_tokens"),
        (edit_segment, {"data_wait_seconds": 0.5}, [DATA_BOUND], "waited_in_training"),
        (_edit_machine, {"num_cpus": 1}, [OWN_DEVICE], "too_few_devices"),
    ],
)
def test_a_gate_fails_on_the_defect_it_is_there_for_and_no_other_does(tmp_path, params, edit, changes, fails, code):
    edit(tmp_path, "2proc", **changes)
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
    require(found, code, outcome="failed" if "other" in code else "not checked")


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


def test_work_done_twice_is_told_and_no_speedup_of_two_trainings_beside_it(tmp_path, params):
    for part in params["ranges"]:
        edit_ledger(
            tmp_path, "2proc", lambda arrays: arrays.update({k: np.tile(v, 2) for k, v in arrays.items()}), part
        )
    gates = gates_of(tmp_path, params)
    assert {ASKED_FOR, SAME_ROWS, ONCE, TOKENS} <= {*failed(gates)}
    assert gates[TOKENS].hints == ["2proc did 2.00x the work of 1proc"]


def test_a_speedup_of_more_than_linear_is_not_believed(tmp_path):
    # 10 s against 2 x 4.5 s of the ranks' time is a parallel efficiency of 1.11, against 2 x 4.6 s of 1.09.
    beyond, within = (
        gates_of(tmp_path, write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [3.0, second]}))
        for second in (1.5, 1.6)
    )
    wanted = {"rank_seconds": 9.0, "rank_seconds_of_baseline": 10.0, "least_believed": 10 / 1.1, "efficiency": 10 / 9}
    assert failed(beyond) == [PLAUSIBLE]
    require(beyond[PLAUSIBLE].findings[0], "trained_beyond_linear", **wanted)
    (found,) = within[PLAUSIBLE].findings
    # Another gate may withhold it.
    assert (found.outcome, {"efficiency", "speedup"} & found.numbers.keys()) == ("passed", set())
