"""A training as chaotic as they come, ResNet18 with SGD in fp32 and fast mode: right ones pass, wrong ones fail."""

from pathlib import Path

import pytest

from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import ABOUT_SECONDS, Museum
from tests.museum.project import Size

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Museum:
    """The right comparison of 1 and 2 processes, and room for wrong ones beside it."""
    size = Size(workload="image_classification", num_rows=(45, 13))
    return Museum(
        tmp_path_factory.mktemp("chaotic"), project, size=size, certifies_all=True, num_attempts=1,
        twins_have_defects=False,
    )  # fmt: skip


def test_a_right_training_of_a_resnet_passes_and_is_certified(museum: Museum) -> None:
    outcome = museum.clean
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {*ABOUT_SECONDS, "Every rank has a device of its own"}, outcome.says
    assert outcome.results is not None
    verdicts = {gate["name"]: gate["verdict"] for gate in outcome.results["gates"]}
    assert verdicts["Update equivalence"] == verdicts["Loss curves coincide"] == "passed"
    assert outcome.results["chaos"]["num_steps"] >= 5


@pytest.mark.parametrize("key", ["mean of means over ranks", "mean of means over micro-batches"])
def test_a_mean_of_means_fails_though_only_a_partial_batch_shows_it(museum: Museum, key: str) -> None:
    (exhibit,) = [one for one in EXHIBITS if one.key == key]
    assert "Update equivalence" in museum.show(exhibit).failed_gates
