"""The report of a search: its figures worked out by hand, its page and its Markdown."""

import math

import pytest

from tasks.records.search import RepeatRecord, SearchFile, SpreadRecord, TrialEpoch
from tasks.reporting.search import compute_costs, describe_search, judge_lead
from tests.tasks.reporting.comparison import BY_HAND
from tests.tasks.reporting.rendered import lacks

T_OF_TWO = 4.302652729911275
"""The 97.5 % point of Student's t with two degrees of freedom, from a table."""


@pytest.fixture
def found():
    """Four trials, of which two went on after an epoch; the second won, and two were repeated with seed 43."""
    return SearchFile.model_validate(BY_HAND["search"])


@pytest.mark.parametrize(
    ("losses", "is_beyond"), [((3.04, 3.06), False), ((3.001, 3.101), True), ((3.001, 2.999), False)]
)
def test_a_lead_is_beyond_luck_if_seeds_scatter_less_and_show_one_too(found, losses, is_beyond):
    repeats = [RepeatRecord(trial=trial, seed=43, loss=loss) for trial, loss in zip((1, 2), losses, strict=True)]
    changed = found.model_copy(update={"repeats": repeats})
    spread = judge_lead(changed)
    # Seed 42 gave 3.0 and 3.1; of two figures the variance is half of their difference's square.
    scatter = math.sqrt(((3.0 - losses[0]) ** 2 / 2 + (3.1 - losses[1]) ** 2 / 2) / 2)
    expected = (0.1, losses[1] - losses[0], scatter, T_OF_TWO * math.sqrt(2) * scatter)
    assert (spread, spread.is_beyond) == (pytest.approx(expected), is_beyond)
    assert describe_search(changed)[1].startswith("That is more than luck" if is_beyond else "So the lead may be luck")


def test_trials_at_once_and_ranks_per_trial_are_reckoned_from_what_was_measured(found):
    # Beside others: the first epoch, 10 s; alone: the mean of 6 and 8 s; by two ranks: 4 s. Three trials had an epoch,
    # two at a time, and one had two more: 2 x 10 + 2 x 7 = 34 s, against 3 x 4 + 2 x 4 = 20 s.
    *_, costs = describe_search(found)
    assert not lacks(costs, "10.0 s", "7.00 s", "4.00 s", "34.0 s", "20.0 s", "ranks per trial, by 1.70x")
    slow = SpreadRecord(cell="2proc", world_size=2, epoch=TrialEpoch(num_tokens=1000, train_seconds=8.5, num_others=0))
    assert describe_search(found.model_copy(update={"spread": slow}))[2].endswith("trials at once, by 1.25x.")


@pytest.mark.parametrize(
    ("of_best", "of_spread", "is_known"),
    [
        ([1, 0, 0], 0, True),
        ([None, 0, 0], 0, False),  # of an earlier version
        ([0, 0, 0], 0, False),  # each trial on a machine of its own
        ([3, 0, 0], 0, False),  # of a search that had more at once
        ([1, 0, 0], 1, False),  # the first cell is the one of several ranks
    ],
)
def test_seconds_of_trials_that_ran_beside_others_than_now_are_not_reckoned_with(found, of_best, of_spread, is_known):
    content = found.model_dump()
    for epoch, number in zip(content["trials"][found.best]["epochs"], of_best, strict=True):
        epoch["num_others"] = number
    content["spread"]["epoch"]["num_others"] = of_spread
    assert isinstance(compute_costs(SearchFile.model_validate(content)), str) != is_known
