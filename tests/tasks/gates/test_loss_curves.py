"""Whether a loss follows the baseline's, coarsely."""

import numpy as np
import pytest

from tasks.gates.correctness import check_loss_curves, list_differences
from tests.tasks.reporting.comparison import edit_json, edit_steps

BASE = np.linspace(4.0, 3.0, 40)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ([(slice(21, None), 1.05)], []),
        ([(slice(16, 32), 1.2)], [(17, 40)]),
        ([(slice(0, 4), 2.0)], [(1, 16)]),
        # Right trainings that have parted scatter around each other.
        ([(slice(21, None, 2), 1.3), (slice(22, None, 2), 0.7)], []),
        ([(slice(38, 39), np.nan)], [(17, 40)]),
    ],
)
def test_the_mean_of_every_window_may_differ_by_a_tenth(changes, windows):
    own = BASE.copy()
    for where, factor in changes:
        own[where] *= factor
    found = list_differences("2proc", own, BASE)
    assert [(one.numbers["first"], one.numbers["last"]) for one in found] == windows


@pytest.mark.parametrize(("end", "is_found"), [(0.01, False), (1.0, True)])
def test_where_nearly_nothing_is_left_of_the_loss_single_rows_are_no_difference(end, is_found):
    base = np.geomspace(4.0, end, 160)
    own = base * np.where(np.arange(160) > 140, 1.3, 1.0)
    assert bool(list_differences("2proc", own, base)) is is_found


def test_how_far_curves_are_apart_is_said_and_another_loss_on_held_out_rows_fails(tmp_path, expect, read):
    edit_steps(tmp_path, "2proc", loss=3.91)
    expect(check_loss_curves, "passed", within=1e-2, largest_relative_difference=0.01 / 3.9)
    models = read().evaluation.model_dump(mode="json")["models"]
    models["2proc"]["loss"] = 1.3 * models["1proc"]["loss"]
    edit_json(tmp_path / "evaluation" / "evaluation.json", models=models)
    expect(check_loss_curves, "heldout_loss_differs", difference=0.3)
