"""The arithmetic of the table, and the table in the document."""

import pytest

from tests.chaos.document import Row, with_rows
from tests.chaos.parts import PARTS
from tests.chaos.trial import Part, Trial, failure_rate_bound, median_and_worst

_PART = Part(key="kills", fault="a | b", survives="all well", trials=lambda _: iter(()), num_trials=3)
_EMPTY = "# Faults\n<!-- written by make chaos: begin -->\n<!-- end -->\nafter\n"


@pytest.mark.parametrize(("num_trials", "percent"), [(50, 5.8), (100, 3.0), (300, 1.0)])
def test_trials_without_a_failure_bound_its_rate(num_trials: int, percent: float) -> None:
    bound = failure_rate_bound([Trial()] * num_trials)
    assert bound is not None
    assert round(100 * bound, 1) == percent


def test_a_failure_or_no_trial_bounds_nothing() -> None:
    assert failure_rate_bound([]) is None
    assert failure_rate_bound([Trial()] * 99 + [Trial(problem="other weights")]) is None


def test_seconds_are_given_by_median_and_worst_of_what_is_known() -> None:
    assert median_and_worst([None, 1.0, 2.0, 6.0]) == "2.0 (6.0)"
    assert median_and_worst([None]) == "-"


def test_a_part_that_is_run_again_replaces_its_row_and_no_other() -> None:
    def row(*trials: Trial, key: str = "kills") -> Row:
        part = Part(key=key, fault="a | b", survives="all well", trials=_PART.trials, num_trials=3)
        return Row(part=part, trials=trials, date="2026-11-21")

    order = ["kills", "soak"]
    text = with_rows(_EMPTY, [row(Trial(), key="soak")], order=order, machine="one machine")
    text = with_rows(text, [row(Trial(seconds_lost=2.0))], order=order, machine="one machine")
    text = with_rows(text, [row(Trial(seconds_lost=3.0), Trial(problem="bad"))], order=order, machine="another")
    lines = text.splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")] == ["| part", "| kills", "| soak"]
    assert "| kills | a \\| b | all well | 2 | 1 | 3.0 (3.0) | - | - | 2026-11-21 |" in lines
    assert "Last on another." in lines
    assert text.startswith("# Faults\n")
    assert text.endswith("after\n")


def test_every_part_has_a_name_of_its_own() -> None:
    assert len({part.key for part in PARTS}) == len(PARTS)
