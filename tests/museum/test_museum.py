"""Wrong trainers, trained, are caught by the gate that is meant for them; those that seconds tell: test_times.py.

One for each gate and each refusal of the trainer's; the others are long, and their records are judged in
test_records.py.
"""

from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tasks.records.gate import Gate
from tests.museum.catalogue import TRAINED
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import ABOUT_SECONDS, Museum, Outcome, compare
from tests.museum.project import CELLS, Size, change_params, copy_project, make_project
from tests.museum.records import RECORDS, judge, list_codes
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Museum:
    """The comparison without a defect, run once, and the exhibits beside it; what blocks did is told by short ones."""
    folder = tmp_path_factory.mktemp("museum")
    return Museum(
        folder, project, num_attempts=1, block_seconds=0.04, speed_seconds=0.1
    )  # fmt: skip


def assert_is_caught(outcome: Outcome, exhibit: Exhibit, folder: Path) -> None:
    """Fail unless the gate that is meant for the exhibit caught it, and no speedup was printed.

    The changed record that stands for the exhibit has to fail that gate for the same reason.
    """
    assert outcome.is_caught_by(exhibit.caught_by), f"{outcome.failed_gates}: {outcome.says}"
    if outcome.results is not None:
        assert outcome.results["cells"][-1]["standing"]["state"] == "withheld"
        assert [cell["whole"]["speedup"] for cell in outcome.results["cells"]] == [None, None]
    if exhibit.key in RECORDS:
        gates = [Gate.model_validate(gate) for gate in outcome.results["gates"]] if outcome.results else []
        codes = list_codes(gates, exhibit.caught_by)
        assert codes & list_codes(judge(folder, exhibit.key), exhibit.caught_by), codes


def list_exhibits(*, about_seconds: bool) -> list[ParameterSet]:
    """Return the exhibits to be trained, those that no gate needs marked as long; of searches: test_search.py."""
    return [
        pytest.param(part, id=part.key, marks=[] if part.key in TRAINED.values() else [pytest.mark.long])
        for part in EXHIBITS
        if (part.caught_by in ABOUT_SECONDS) == about_seconds and part.scenario != "search"
    ]


@pytest.mark.parametrize("exhibit", list_exhibits(about_seconds=False))
def test_the_defect_is_caught_by_the_named_gate_and_no_speedup_is_printed(
    museum: Museum, exhibit: Exhibit, tmp_path: Path
) -> None:
    assert_is_caught(museum.show(exhibit), exhibit, tmp_path)


def test_odd_numbers_of_ranks_and_partial_batches_raise_no_alarm_but_of_devices(tmp_path: Path, project: Path) -> None:
    # 47 rows are one batch of 30 and one of 17: most ranks run dummies in its last round.
    train = (("global_batch_size", 30), ("micro_batch_size", 1))
    size = Size(num_rows=(47, 29), train=train)
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
    assert found == dict.fromkeys(["1proc", "2proc", *(f"{size}proc" for size in ranks)], "passed")
