"""Every wrong trainer is caught by the gate that is meant for it; right ones raise no alarm."""

import os
from pathlib import Path

import pytest

from tests.museum.clean import run_clean
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import ABOUT_SECONDS, Museum, Outcome, compare
from tests.museum.project import CELLS, Size, change_params, copy_project, make_project
from tests.museum.stage_process import run_elsewhere

pytestmark = [pytest.mark.slow, pytest.mark.alone]

NUM_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Museum:
    """The comparison without a defect, run once, and the exhibits beside it."""
    return Museum(tmp_path_factory.mktemp("museum"), project)


def assert_no_alarm(outcome: Outcome) -> None:
    assert outcome.refusal is None, outcome.says
    # On a single core two processes have none of their own, and the gate is right to say so.
    allowed = {"Every rank has a device of its own"} if NUM_CPUS < 2 else set()
    assert set(outcome.failed_gates) <= allowed, outcome.says


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_the_defect_is_caught_by_the_named_gate_and_no_speedup_is_printed(museum: Museum, exhibit: Exhibit) -> None:
    outcome = museum.show(exhibit)
    if exhibit.is_timed and exhibit.caught_by in ABOUT_SECONDS and outcome.left_open(exhibit.caught_by):
        pytest.skip(f"the machine was too busy for “{exhibit.caught_by}” to tell: {outcome.says}")
    assert outcome.is_caught_by(exhibit.caught_by), f"{outcome.failed_gates}: {outcome.says}"
    if outcome.results is not None:
        assert outcome.results["cells"][-1]["standing"]["state"] == "withheld"
        assert [cell["whole"]["speedup"] for cell in outcome.results["cells"]] == [None, None]


def test_the_comparison_without_a_defect_raises_no_alarm(museum: Museum) -> None:
    assert_no_alarm(museum.clean)


def test_the_comparison_without_a_defect_raises_no_alarm_when_it_is_timed(museum: Museum) -> None:
    outcome = museum.show_timed()
    assert_no_alarm(outcome)
    assert outcome.results is not None
    assert outcome.results["measurement"]["arms"][1]["speedup"] is not None


@pytest.mark.parametrize("index", range(3))
def test_comparisons_of_other_seeds_and_sizes_raise_no_alarm(tmp_path: Path, project: Path, index: int) -> None:
    assert_no_alarm(run_clean(tmp_path, project, index)[-1])


def test_odd_numbers_of_ranks_and_partial_batches_raise_no_alarm_but_of_devices(tmp_path: Path, project: Path) -> None:
    # 47 rows are one batch of 30 and one of 17: most ranks run dummies in its last round.
    size = Size(num_rows=(47, 29), train=(("global_batch_size", 30), ("micro_batch_size", 1)))
    run_elsewhere(make_project, tmp_path / "blank", project, size)
    copy = copy_project(tmp_path / "blank", tmp_path / "compared")
    ranks = (3, 5, 6)
    change_params(
        copy,
        {f"cells.{size}proc": {"strategy": "ddp", "world_size": size, "launcher": "forked"} for size in ranks},
    )
    outcome = compare(copy, (*CELLS, *(f"{size}proc" for size in ranks)))
    assert outcome.refusal is None, outcome.says
    about_devices = {"Every rank has a device of its own", *ABOUT_SECONDS}
    assert set(outcome.failed_gates) <= about_devices, outcome.says
    assert outcome.results is not None
    certified = next(gate for gate in outcome.results["gates"] if gate["name"] == "Update equivalence")
    found = {one["cell"]: one["verdict"] for one in certified["findings"]}
    assert found == dict.fromkeys(["2proc", *(f"{size}proc" for size in ranks)], "passed")
