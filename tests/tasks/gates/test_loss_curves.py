"""Whether a loss follows the baseline's, coarsely."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.gates.correctness import check_loss_curves, list_differences
from tests.tasks.reporting.comparison import edit_json, edit_steps, outputs_of

BASE = np.linspace(4.0, 3.0, 40)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ([], []),
        ([(slice(21, None), 1.05)], []),
        ([(slice(16, 32), 1.2)], [(17, 40)]),
        ([(slice(0, 4), 2.0)], [(1, 16)]),
        # Right trainings that have parted scatter around each other.
        ([(slice(21, None, 2), 1.3), (slice(22, None, 2), 0.7)], []),
        ([(slice(38, 39), np.nan)], [(17, 40)]),
    ],
)
def test_the_mean_of_every_window_may_differ_by_a_tenth(changes: list[Any], windows: list[Any]) -> None:
    own = BASE.copy()
    for where, factor in changes:
        own[where] *= factor
    found = list_differences("2proc", own, BASE)
    assert [(one.numbers["first"], one.numbers["last"]) for one in found] == windows


def test_nothing_is_said_of_the_baseline_and_another_loss_on_held_out_rows_fails(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    outputs = outputs_of(tmp_path, params)
    assert check_loss_curves(outputs, "1proc") is None
    models = outputs.evaluation.model_dump(mode="json")["models"]
    models["2proc"]["loss"] = 1.3 * models["1proc"]["loss"]
    edit_json(tmp_path / "evaluation" / "evaluation.json", models=models)
    finding = check_loss_curves(outputs_of(tmp_path, params), "2proc")
    assert finding is not None
    assert finding.code == "heldout_loss_differs"
    assert (finding.numbers["difference"], finding.numbers["most"]) == (pytest.approx(0.3), 0.1)


def test_the_gate_says_how_far_the_curves_are_apart(tmp_path: Path, params: dict[str, Any]) -> None:
    edit_steps(tmp_path, "2proc", loss=3.91)
    finding = check_loss_curves(outputs_of(tmp_path, params), "2proc")
    assert finding is not None
    assert (finding.verdict, finding.numbers["largest_relative_difference"]) == (
        "passed", pytest.approx(0.01 / 3.9, rel=1e-2),
    )  # fmt: skip
