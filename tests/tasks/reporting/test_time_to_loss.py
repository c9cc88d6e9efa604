"""When the cells came to a loss: both log 4.0, 3.9, 3.8, 3.7; their steps take 3, 3, 2, 2 s and 2, 2, 1.2, 1.2 s."""

import numpy as np
import pytest

from tasks.reporting.time_to_loss import compute_time_to_loss, find_first_reached
from tests.tasks.reporting.blocks import give_steps
from tests.tasks.reporting.comparison import PARAMS, RANGES, edit_steps, outputs_of, write_comparison


def times_of(folder, params):
    found = compute_time_to_loss(outputs_of(folder, params))
    return [(cell.step, None if cell.train_seconds is None else round(cell.train_seconds, 9)) for cell in found.cells]


def test_a_loss_is_reached_after_the_first_full_window_that_is_low_enough():
    losses = np.array([4.0, 2.0, 3.0, 1.0, 1.0])  # over two steps: 3.0, 2.5, 2.0, 1.0
    assert find_first_reached(losses, target=2.5, window=2) == 2
    assert find_first_reached(losses, target=2.4, window=2) == 3
    assert find_first_reached(losses, target=2.0, window=1) == 1  # one lucky step, which smoothing does not take for it
    assert find_first_reached(losses, target=0.5, window=2) is None


def _edit(folder, part, index, **changes):
    for cell in ("1proc", "2proc"):
        edit_steps(folder, cell, part, index=index, **changes)


NO_TARGET = {"loss": 0.0, "num_targets": 0}
"""All labels of a step were left out: it logs a loss of 0, as the ranks do."""


@pytest.mark.parametrize(
    ("target", "edit", "expected"),
    [
        (3.8, None, [(3, 8.0), (3, 5.2)]),
        # The seconds of a step without a target are spent all the same, and it is not the one that comes there.
        (3.8, ("0-8", 1, NO_TARGET), [(3, 8.0), (3, 5.2)]),
        (0.5, ("0-8", 1, NO_TARGET), [(None, None)] * 2),
        # Nor is it where the baseline ended.
        (None, ("8-16", 1, NO_TARGET), [(3, 8.0), (3, 5.2)]),
    ],
)
def test_each_cells_seconds_to_a_loss_are_those_of_its_steps_up_to_there(tmp_path, target, edit, expected):
    params = write_comparison(tmp_path, params=PARAMS | {"quality": {"target_loss": target}})
    if edit is not None:
        _edit(tmp_path, edit[0], edit[1], **edit[2])
    assert times_of(tmp_path, params) == expected


def test_rounding_alone_keeps_no_cell_from_where_the_baseline_ended(tmp_path, params):
    for loss, expected in ((3.7 * (1 + 1e-6), (4, 6.4)), (3.73, (None, None))):
        edit_steps(tmp_path, "2proc", "8-16", index=1, loss=loss)
        assert times_of(tmp_path, params) == [(4, 10.0), expected]


def test_a_training_without_any_target_has_no_time_to_a_loss(tmp_path, collect):
    for part in RANGES:
        for index in (0, 1):
            _edit(tmp_path, part, index, **NO_TARGET)
    results = collect()
    assert results.quality.time_to_loss is None
    assert [curve.losses for curve in results.loss_curves] == [[], []]


def test_long_curves_are_smoothed_over_a_twentieth_of_their_steps(tmp_path):
    outputs = outputs_of(tmp_path, write_comparison(tmp_path))
    for num_steps, window in ((39, 1), (40, 2), (999, 49), (5000, 50)):
        give_steps(outputs, **dict.fromkeys(outputs.runs, np.ones(num_steps)))
        assert compute_time_to_loss(outputs).window_steps == window
