"""Numbers that move need another NUMERICS_VERSION: what was finished with the old ones is not used any more."""

from pathlib import Path

import pytest

from tests.extras import skip_without
from tests.training.forked_ranks import ForkedRanks
from tests.training.golden import trainings
from tests.training.golden.trainings import (
    describe_platform,
    find_moved,
    list_trainings,
    read_golden,
    train,
)
from training.numerics import NUMERICS_VERSION


@pytest.mark.parametrize("name", list_trainings())
def test_the_numbers_are_those_of_the_golden_file(name: str, tmp_path: Path, ranks: ForkedRanks) -> None:
    if "deepspeed" in name:
        skip_without("deepspeed")
    assert (moved := find_moved(name, train(name, list_trainings()[name], tmp_path, ranks), read_golden())) is None, (
        moved
    )


def test_the_golden_file_has_nothing_that_is_not_trained() -> None:
    assert list_trainings().keys() == read_golden()["numbers"].keys()


@pytest.mark.parametrize("name", [name for name in list_trainings() if len(name.split()) == 2])
def test_every_strategy_trains_what_one_process_trains_whatever_the_workload(name: str) -> None:
    """What the golden file holds of both, which the trainings are held to."""
    numbers = read_golden()["numbers"]
    for what, found in numbers[name].items():
        assert found == pytest.approx(numbers[f"{name.split()[0]} single"][what], rel=1e-5, abs=1e-5), what


@pytest.mark.parametrize(("platform", "moves_by"), [(describe_platform(), 1e-12), ("another one", 2e-5)])
def test_numbers_that_moved_are_told_with_what_to_do(
    platform: str, moves_by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"loss": [4.5, 4.25], "gradient": [1.5, 1.25], "weights": [30.0, -2.0]}
    golden = {"numerics_version": NUMERICS_VERSION, "platform": platform, "numbers": {"one": numbers}}
    assert find_moved("one", numbers, golden) is None
    moved = find_moved("one", {**numbers, "gradient": [1.5, 1.25 + 1.5 * moves_by]}, golden)
    assert str(moved).startswith("one: gradient ")
    assert "raise NUMERICS_VERSION in training/numerics.py" in str(moved)
    # Once it is raised, the file is to be renewed.
    monkeypatch.setattr(trainings, "NUMERICS_VERSION", NUMERICS_VERSION + 1)
    assert str(find_moved("one", numbers, golden)).endswith("python -m tests.training.golden")
