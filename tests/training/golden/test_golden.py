"""Numbers that move need another NUMERICS_VERSION: what was finished with the old ones is not used any more."""

import pytest

from tests.extras import skip_without
from tests.training.golden.trainings import find_moved, list_trainings, read_golden, train


@pytest.mark.parametrize("name", list_trainings())
def test_the_numbers_are_those_of_the_golden_file(name, tmp_path, ranks):
    if "deepspeed" in name:
        skip_without("deepspeed")
    assert find_moved(name, train(name, tmp_path, ranks), read_golden()) is None


@pytest.mark.parametrize("name", [name for name in list_trainings() if len(name.split()) == 2])
def test_every_strategy_trains_what_one_process_trains_whatever_the_workload(name):
    """What the golden file holds of both, which the trainings are held to."""
    numbers = read_golden()["numbers"]
    for what, found in numbers[name].items():
        assert found == pytest.approx(numbers[f"{name.split()[0]} single"][what], rel=1e-5, abs=1e-5), what
