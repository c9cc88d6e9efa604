"""Timed blocks are held to the training's rows, losses, gradients and exchanges."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from tasks.gates.work_of_blocks import check_block_work
from tests.tasks.gates.conftest import require
from tests.tasks.reporting.blocks import arm_blocks, block, write_blocks
from tests.tasks.reporting.comparison import NUM_PARAMETERS, outputs_of, rows_in_order
from training.record.ledger_file import digest_rows

ROWS_OF_ANOTHER, LOSS = block("2proc", 2).rows, block("2proc", 1).loss_sum


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        # Thrice what is allowed.
        ("2proc", {"loss_sum": LOSS * (1 + 3e-5)}, "other_loss"),
        ("2proc", {"loss_sum": None}, "loss_not_finite"),
        ("2proc", {"grad_norm_sum": 2.501}, "other_gradient"),
        ("2proc", {"moment_squares": 1.001}, "other_moments"),
        ("2proc", {"num_updated": 2 * NUM_PARAMETERS - 1}, "not_all_updated"),
        ("2proc, update only", {"updates": [[0, 0]]}, "other_updates"),
        ("2proc", {"num_positions": 4000}, "other_positions"),
        ("2proc", {"num_exchanges": [2, 3]}, "other_exchanges"),
        ("2proc", {"exchange_bytes": [2 * NUM_PARAMETERS] * 2}, "other_bytes"),
        ("2proc", {"turn": 99}, "baseline_missing"),
        ("2proc, no communication", {"num_exchanges": [2, 2]}, "exchanges_where_none_belong"),
        ("2proc, no communication", {"rows": ROWS_OF_ANOTHER}, "other_rows"),
        ("2proc, one copy alone", {"rows": ROWS_OF_ANOTHER}, "other_rows_alone"),
        ("2proc, update only", {"num_samples": 2}, "rows_in_an_update"),
    ],
)
def test_a_block_that_did_something_else_fails_its_cell_and_one_of_several_ranks_that_alone(
    tmp_path, expect, name, changes, code, read
):
    arm = arm_blocks(name)
    arm.blocks[0] = arm.blocks[0].model_copy(update=changes)
    write_blocks(tmp_path, arm)
    found = check_block_work(read(), "2proc")
    assert found.outcome == "failed"
    assert (name, code) in {(one.numbers["arm"], one.code) for one in found.problems}
    expect(check_block_work, "passed", "1proc")


def test_gradients_in_16_bit_have_half_the_bytes_where_torch_recorded_them(tmp_path, params):
    halved = copy.deepcopy(params)
    halved["cells"]["2proc"]["options"] = {"gradient_hook": "bf16"}
    half = {"exchange_bytes": [4 * NUM_PARAMETERS] * 2}
    for told, changes, code in (
        (params, {"exchange_bytes": None}, "passed"), (halved, half, "passed"), (halved, {}, "other_bytes")
    ):  # fmt: skip
        write_blocks(tmp_path, arm_blocks("2proc", turn=None, **changes))
        require(check_block_work(outputs_of(tmp_path, told), "2proc"), code)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_micro_batches": 14}, "passed"),
        ({"num_micro_batches": 13}, "other_micro_batches"),
        ({"num_micro_batches": 16, "grad_norm_sum": 2.501}, "passed"),
        ({"num_micro_batches": 16, "grad_norm_sum": 2.6}, "other_gradient"),
    ],
)
def test_where_ranks_normalise_together_each_has_a_part_of_the_baselines_micro_batch(
    tmp_path, params, changes, code, read
):
    silent = arm_blocks("2proc, no communication", turn=None, num_micro_batches=16)
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, **changes), silent)
    outputs = read()
    told = outputs.params
    first = told.cells["1proc"].model_copy(update={"micro_batch_size": 2 * told.train.micro_batch_size})
    model = told.model.model_copy(update={"norm": "sync_batch"})
    told = told.model_copy(update={"model": model, "cells": {**told.cells, "1proc": first}})
    require(check_block_work(replace(outputs, params=told), "2proc"), code)


def _widen(name, **changes):
    """Return blocks of one step of 8 samples, the whole of a range, where 1proc has one of 4."""
    arm = arm_blocks(name)
    for at, one in enumerate(arm.blocks):
        rows = f"{digest_rows([[np.array(rows_in_order(one.range))]]):016x}"
        wide = {"updates": [[1, 1]] * len(one.updates), "steps": [1], "rows": rows, "loss_sum": 1.0}
        wide |= {key: [n // 2 for n in getattr(one, key)] for key in ("num_exchanges", "exchange_bytes")}
        arm.blocks[at] = one.model_copy(update=wide | changes)
    return arm


def test_in_weak_scaling_a_step_has_the_rows_of_as_many_samples_in_the_order_of_the_training(tmp_path, read):
    for changes, code in (
        ({}, None),
        ({"rows": ROWS_OF_ANOTHER}, "other_rows"),
        ({"steps": [2]}, "other_rows"),
        ({"num_exchanges": [0, 0]}, "other_exchanges"),
        ({"grad_norm_sum": 0.0}, "no_gradient"),
    ):
        wide = [_widen(name, **changes) for name in ("2proc", "2proc, no communication")]
        write_blocks(tmp_path, *wide, of_2proc={"global_batch_size": 8})
        found = check_block_work(read(), "2proc")
        assert code in {one.code for one in found.problems} or require(found, "passed", batch=8)
