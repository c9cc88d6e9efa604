"""Each gate fails on what it is there for, and says the numbers.

What other defects leave in the records is judged in tests/museum/test_records.py; where there is none all of them pass
(tests/tasks/reporting/test_standing.py).
"""

import json

import numpy as np
import pytest

from tasks.gates.checks import check_gates
from tests.tasks.gates.conftest import require
from tests.tasks.reporting.comparison import (
    edit_json,
    edit_ledger,
    edit_segment,
    edit_steps,
    make_checked_update,
    outputs_of,
    write_comparison,
)

CURVES, SAME_WORK, TOKENS, PLAUSIBLE = (
    "Loss curves coincide", "Same work in every cell", "Equal tokens", "Speedup is plausible"
)  # fmt: skip


def gates_of(folder, params):
    return {gate.name: gate for gate in check_gates(outputs_of(folder, params))}


def failed(gates):
    return [name for name, gate in gates.items() if gate.outcome == "failed"]


def _edit_run(folder, cell, **changes):
    edit_json(folder / "runs" / cell / "run.json", **changes)


def _forget_segment(folder, cell):
    segments = json.loads((folder / "runs" / cell / "run.json").read_text())["segments"]
    _edit_run(folder, cell, segments=segments[:1])


@pytest.mark.parametrize(
    ("edit", "changes", "fails", "code"),
    [
        (edit_segment, {"optimizer_checksums": ["opt3", "b"]}, ["Same parameters on all ranks"], "other_optimizer"),
        (_edit_run, {"base_model_digest": "e1" * 32}, [SAME_WORK], "other_start_weights"),
        (_edit_run, {"numerics_version": 7}, [SAME_WORK], "other_numerics_version"),
        (_edit_run, {"machine_digest": "e1" * 32}, [SAME_WORK], "other_machine"),
        (_edit_run, {"global_batch_size": 8}, [SAME_WORK], "other_samples_per_optimizer_step"),
        (edit_steps, {"learning_rate": 5e-4}, ["Steps are those asked for", SAME_WORK], "other_learning_rate"),
        (edit_steps, {"num_samples": 2}, [SAME_WORK], "other_samples"),
        (
            _forget_segment, {},
            [CURVES, "Evaluated what was trained", SAME_WORK, "Every sample exactly once", TOKENS, PLAUSIBLE],
            "other_segments",
        ),
        (edit_segment, {"num_tokens": 30}, [TOKENS], "other_tokens"),
        (edit_segment, {"data_wait_seconds": 0.5}, ["Not data-bound"], "waited_in_training"),
    ],
)  # fmt: skip
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
    found = gates_of(tmp_path, params)["Starts from the base model"].findings[1]
    require(found, code, outcome="failed" if "other" in code else "not checked")


def test_json_has_no_infinity(tmp_path, params):
    edit_steps(tmp_path, "2proc", loss=float("inf"))
    assert gates_of(tmp_path, params)[CURVES].findings[0].numbers["largest_relative_difference"] is None


def test_work_done_twice_is_told(tmp_path, params):
    # Of 31 + 32 tokens the first range's.
    edit_ledger(tmp_path, "2proc", lambda arrays: arrays.update({k: np.tile(v, 2) for k, v in arrays.items()}))
    assert gates_of(tmp_path, params)[TOKENS].hints == ["2proc did 1.49x the work of 1proc"]


def test_a_speedup_of_more_than_linear_is_not_believed(tmp_path):
    # 10 s against 2 x 4.5 s of the ranks' time is a parallel efficiency of 1.11, against 2 x 4.6 s of 1.09.
    beyond, within = (
        gates_of(tmp_path, write_comparison(tmp_path, seconds={"1proc": [6.0, 4.0], "2proc": [3.0, second]}))
        for second in (1.5, 1.6)
    )
    assert failed(beyond) == [PLAUSIBLE]
    require(beyond[PLAUSIBLE].findings[0], "trained_beyond_linear", rank_seconds=9.0, efficiency=10 / 9)
    (found,) = within[PLAUSIBLE].findings
    # Another gate may withhold it.
    assert (found.outcome, {"efficiency", "speedup"} & found.numbers.keys()) == ("passed", set())
