"""Wrong trainers that only seconds tell from right ones, and right ones that raise no alarm, however they are timed."""

import os
from pathlib import Path

import pytest

from tests.museum.clean import run_clean
from tests.museum.exhibit import Exhibit
from tests.museum.museum import Museum, Outcome
from tests.museum.test_museum import assert_is_caught, list_exhibits

pytestmark = [pytest.mark.slow, pytest.mark.alone]

NUM_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Museum:
    """The comparison without a defect, run until its times were undisturbed, and the exhibits beside it."""
    return Museum(tmp_path_factory.mktemp("museum"), project)


@pytest.mark.parametrize("exhibit", list_exhibits(about_seconds=True))
def test_the_defect_is_caught_by_the_named_gate_and_no_speedup_is_printed(
    museum: Museum, exhibit: Exhibit, tmp_path: Path
) -> None:
    outcome = museum.show(exhibit)
    if exhibit.is_timed and outcome.verdicts.get(exhibit.caught_by) == "not checked":
        pytest.skip(f"the machine was too busy for “{exhibit.caught_by}” to tell: {outcome.says}")
    assert_is_caught(outcome, exhibit, tmp_path)


def assert_no_alarm(outcome: Outcome) -> None:
    assert outcome.refusal is None, outcome.says
    # On a single core two processes have none of their own, and the gate is right to say so.
    allowed = {"Every rank has a device of its own"} if NUM_CPUS < 2 else set()
    assert set(outcome.failed_gates) <= allowed, outcome.says


def test_the_comparison_without_a_defect_raises_no_alarm(museum: Museum) -> None:
    assert_no_alarm(museum.clean)


def test_the_comparison_without_a_defect_raises_no_alarm_when_it_is_timed(museum: Museum) -> None:
    outcome = museum.show_timed()
    assert_no_alarm(outcome)
    assert outcome.results is not None
    assert outcome.results["measurement"]["arms"][1]["speedup"] is not None


@pytest.mark.parametrize(("index", "workload"), [*((one, "causal_lm") for one in (0, 2, 4)), (1, "instruction")])
def test_comparisons_of_other_seeds_and_sizes_raise_no_alarm(
    tmp_path: Path, project: Path, index: int, workload: str
) -> None:
    assert_no_alarm(run_clean(tmp_path, project, index, workload=workload)[-1])
