"""Rows and learning rates of every step, held against a second computation of what params.yaml asks for."""

import numpy as np
import pytest

from tasks.gates.asked_for import check_steps, check_timed_rows, compute_learning_rates
from tasks.params import Params
from tests.tasks.reporting.blocks import arm_blocks, write_blocks
from tests.tasks.reporting.comparison import PARAMS, edit_ledger, edit_steps
from training.step.schedule import compute_learning_rate


def test_an_order_or_a_rate_that_is_wrong_alike_in_all_cells_fails_in_each(tmp_path, params, read):
    for cell in params["cells"]:
        edit_ledger(tmp_path, cell, lambda arrays: arrays.update(row_id=np.sort(arrays["row_id"])))
        edit_steps(tmp_path, cell, learning_rate=2e-3)
    outputs = read()
    for cell in params["cells"]:
        order, rate = check_steps(outputs, cell).problems
        assert (order.code, rate.code, rate.numbers["step"]) == ("other_order", "other_learning_rate", 2)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
@pytest.mark.parametrize(("warmup_steps", "num_steps"), [(0, 1), (0, 7), (3, 7), (7, 7), (9, 7)])
def test_the_second_computation_gives_what_training_takes(schedule, warmup_steps, num_steps):
    def compute(span, **part):
        changed = how | {"schedule_floor": 0.1, "schedule_span": span}
        return compute_learning_rates(Params.model_validate(PARAMS | {"train": PARAMS["train"] | changed}), **part)

    how = {"schedule": schedule, "warmup_steps": warmup_steps, "decay_steps": 3}
    taken = [compute_learning_rate(step, num_steps, peak=2e-3, floor=0.1, **how) for step in range(1, num_steps + 1)]
    np.testing.assert_allclose(compute("segment", num_steps=num_steps), taken, rtol=1e-12)
    # The same in two parts, of a schedule that runs over both.
    first = num_steps // 2
    parts = [
        compute("run", num_steps=size, before=before, total=num_steps)
        for before, size in ((0, first), (first, num_steps - first))
    ]
    np.testing.assert_allclose(np.concatenate(parts), taken, rtol=1e-12)


def test_timed_rows_as_long_as_those_of_the_whole_training_pass_and_longer_ones_fail(tmp_path, expect):
    write_blocks(tmp_path)
    expect(check_timed_rows, "passed")
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, num_tokens=36))
    expect(check_timed_rows, "more_tokens", within=0.035, apart=0.143)
    # A step of few rows, padded to the length of all packs: how far apart follows from tokens, not from padding.
    edit_steps(tmp_path, "2proc", num_tokens=16, num_padding_tokens=1600)
    expect(check_timed_rows, "more_tokens")
    # A step of long rows in packs of one length.
    edit_steps(tmp_path, "2proc", num_tokens=32, num_padding_tokens=0)
    expect(check_timed_rows, "passed")
