"""Timed blocks are held to the training's rows, losses, gradients and exchanges."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from tasks.gates.work_of_blocks import check_block_work
from tests.tasks.reporting.blocks import arm_blocks, block, write_blocks
from tests.tasks.reporting.comparison import NUM_PARAMETERS, outputs_of, rows_in_order
from tests.tasks.reporting.measured import measurement
from training.record.ledger_file import digest_rows


def judged(folder, params, cell):
    return check_block_work(outputs_of(folder, params), cell)


def test_blocks_that_did_the_work_pass_in_every_cell(tmp_path, params):
    write_blocks(tmp_path)
    for cell, num_blocks in (("1proc", 40), ("2proc", 80)):
        found = judged(tmp_path, params, cell)
        assert (found.outcome, found.numbers["blocks"]) == ("passed", num_blocks), found.compared


def test_a_measurement_without_blocks_is_not_checked_and_none_at_all_says_nothing(tmp_path, params):
    assert check_block_work(outputs_of(tmp_path, params), "2proc") is None
    measurement().write(tmp_path / "measurements")
    assert judged(tmp_path, params, "2proc").outcome == "not checked"


ROWS_OF_ANOTHER = block("2proc", 2).rows
LOSS = float(block("2proc", 3).loss_sum or 0)


@pytest.mark.parametrize(
    ("name", "changes", "code", "numbers"),
    [
        ("2proc", {"loss_sum": LOSS * (1 + 3e-5)}, "other_loss", {"most": 1e-5}),
        ("2proc", {"loss_sum": None}, "loss_not_finite", {}),
        ("2proc", {"grad_norm_sum": 2.501}, "other_gradient", {"most": 1e-4}),
        ("2proc", {"moment_squares": 1.001}, "other_moments", {"most": 2e-4}),
        ("2proc", {"updates": [[3, 3]] * 2}, "other_updates", {}),
        ("2proc", {"num_updated": 2 * NUM_PARAMETERS - 1}, "not_all_updated", {"expected": 2 * NUM_PARAMETERS}),
        ("2proc, update only", {"updates": [[0, 0]]}, "other_updates", {}),
        ("2proc", {"num_positions": 4000}, "other_positions", {"positions": 4000, "of_baseline": 64}),
        ("2proc", {"num_exchanges": [2, 3]}, "other_exchanges", {"exchanges": [2, 3]}),
        ("2proc", {"exchange_bytes": [2 * NUM_PARAMETERS] * 2}, "other_bytes", {"bytes": 1000, "needed": 4000}),
        ("2proc", {"turn_of": 99}, "baseline_missing", {"turn": 99}),
        ("2proc, no communication", {"num_exchanges": [2, 2]}, "exchanges_where_none_belong", {"exchanges": 4}),
        ("2proc, no communication", {"rows": ROWS_OF_ANOTHER}, "other_rows", {}),
        ("2proc, one copy alone", {"rows": ROWS_OF_ANOTHER}, "other_rows_alone", {}),
        ("2proc, update only", {"num_samples": 2}, "rows_in_an_update", {"samples": 2}),
    ],
)
def test_a_block_that_did_something_else_fails_its_cell_and_one_of_several_ranks_that_alone(
    tmp_path, params, name, changes, code, numbers
):
    one = arm_blocks(name, **changes) if "turn_of" not in changes else arm_blocks(name)
    if "turn_of" in changes:
        one.blocks[0] = one.blocks[0].model_copy(update={"turn": changes["turn_of"]})
    write_blocks(tmp_path, one)
    found = judged(tmp_path, params, name[:5])
    assert found.outcome == "failed"
    told = {problem.code: problem.numbers for problem in found.problems if problem.numbers["arm"] == name}
    assert (code in told, told[code] | numbers) == (True, told[code])
    if name.startswith("2proc"):
        assert judged(tmp_path, params, "1proc").outcome == "passed"


def test_gradients_in_16_bit_have_half_the_bytes_where_torch_recorded_them(tmp_path, params):
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, exchange_bytes=None))
    assert judged(tmp_path, params, "2proc").outcome == "passed"
    params = copy.deepcopy(params)
    params["cells"]["2proc"]["options"] = {"gradient_hook": "bf16"}
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, exchange_bytes=[4 * NUM_PARAMETERS] * 2))
    assert judged(tmp_path, params, "2proc").outcome == "passed"
    write_blocks(tmp_path)
    assert judged(tmp_path, params, "2proc").code == "other_bytes"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_micro_batches": 14}, "passed"),
        ({"num_micro_batches": 13}, "other_micro_batches"),
        ({"num_micro_batches": 16, "grad_norm_sum": 2.501}, "passed"),
        ({"num_micro_batches": 16, "grad_norm_sum": 2.6}, "other_gradient"),
    ],
)
def test_where_ranks_normalise_together_each_has_a_part_of_the_baselines_micro_batch(tmp_path, params, changes, code):
    silent = arm_blocks("2proc, no communication", turn=None, num_micro_batches=16)
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, **changes), silent)
    outputs = outputs_of(tmp_path, params)
    told = outputs.params
    first = told.cells["1proc"].model_copy(update={"micro_batch_size": 2 * told.train.micro_batch_size})
    model = told.model.model_copy(update={"norm": "sync_batch"})
    told = told.model_copy(update={"model": model, "cells": {**told.cells, "1proc": first}})
    found = check_block_work(replace(outputs, params=told), "2proc")
    assert found.code == code


def _write_weak(folder, **changes):
    """Write blocks in which 2proc has one step of 8 samples, the whole of a range, where 1proc has one of 4."""

    def widen(one):
        blocks = []
        for found in one.blocks:
            rows = np.array(rows_in_order(found.range))
            digest = f"{digest_rows([[rows]]):016x}"
            more = {
                "updates": [[1, 1]] * len(found.updates),
                "steps": [1],
                "rows": digest,
                "num_exchanges": [n // 2 for n in found.num_exchanges],
            }
            more |= {"exchange_bytes": [n // 2 for n in found.exchange_bytes or []], "loss_sum": 1.0}
            blocks.append(found.model_copy(update=more | changes))
        return one.model_copy(update={"blocks": blocks})

    silent, alone = (arm_blocks(f"2proc, {name}") for name in ("no communication", "one copy alone"))
    write_blocks(folder, widen(arm_blocks("2proc")), widen(silent), alone, of_2proc={"global_batch_size": 8})


def test_in_weak_scaling_a_step_has_the_rows_of_as_many_samples_in_the_order_of_the_training(tmp_path, params):
    _write_weak(tmp_path)
    told = judged(tmp_path, params, "2proc")
    assert told.outcome == "passed", told.compared
    assert told.numbers["batch"] == 8
    for changes, code in (
        ({"rows": ROWS_OF_ANOTHER}, "other_rows"),
        ({"steps": [2]}, "other_rows"),
        ({"num_exchanges": [0, 0]}, "other_exchanges"),
        ({"grad_norm_sum": 0.0}, "no_gradient"),
    ):
        _write_weak(tmp_path, **changes)
        assert code in {one.code for one in judged(tmp_path, params, "2proc").problems}
