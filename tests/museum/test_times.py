"""Wrong trainers that only seconds tell from right ones, and right ones that raise no alarm, however they are timed."""

import pytest

from tests.museum.exhibits import BY_KEY, EXHIBITS
from tests.museum.museum import ABOUT_SECONDS, Museum
from tests.museum.test_museum import assert_is_caught

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def museum(tmp_path_factory, project):
    """The comparison without a defect, run until its times were undisturbed, and the exhibits beside it."""
    return Museum(tmp_path_factory.mktemp("museum"), project, is_timed=True)


@pytest.mark.parametrize("key", [part.key for part in EXHIBITS if part.caught_by in ABOUT_SECONDS])
def test_the_defect_is_caught_by_the_named_gate_and_no_speedup_is_printed(museum, key, tmp_path):
    exhibit = BY_KEY[key]
    outcome = museum.show(exhibit)
    if exhibit.scenario == "timed" and outcome.verdicts.get(exhibit.caught_by) == "not checked":
        pytest.skip(f"the machine was too busy for “{exhibit.caught_by}” to tell: {outcome.says}")
    assert_is_caught(outcome, key, tmp_path)


def _assert_no_alarm(outcome):
    assert outcome.refusal is None, outcome.says
    assert outcome.failed_gates == [], outcome.says


def test_the_comparison_without_a_defect_raises_no_alarm_timed_or_not(museum):
    _assert_no_alarm(museum.clean)
    outcome = museum.show_timed()
    _assert_no_alarm(outcome)
    assert outcome.results["cells"][1]["speedup"] is not None
