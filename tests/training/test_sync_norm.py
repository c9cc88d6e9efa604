"""Batch normalisation over the rows of all ranks: exactly that of one process, layer by layer and run by run."""

import pytest

from tests.images import make_image_slice
from tests.training.forked_ranks import last_words
from tests.training.replays import check, launch_checked, list_verdicts, train_checked

_GROUP = 4
"""Rows that are normalised together: one rank's micro-batch, or two ranks' of 2."""


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """6 and 14 images of 64 x 64: one step, in whose second forward a rank of two has no row, and two steps.

    Few steps of images that are not too small: over the fewest values a rounding becomes 30 times as much in each.
    """
    root = tmp_path_factory.mktemp("normed")
    return [make_image_slice(root / f"{num}", num_rows=num, size=64) for num in (6, 14)]


def _tell(slices, **changes):
    return {
        "workload": "image_classification", "model": "resnet18, normed", "slices": slices, "optimizer": "sgd",
        "learning_rate": 0.01, "max_grad_norm": 5.0, "micro_batch_size": _GROUP // changes.get("world_size", 1),
        "statistics_rows": _GROUP, "augment": "flip_shift", **changes,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "verdict"), [("training.__main__", "passed"), ("tests.training.apart", "failed")])
def test_updates_with_statistics_of_all_ranks_pass_and_no_others(entry, verdict, ranks, slices, toy):
    config = check(toy.tell(**_tell(slices, world_size=2)), 1, 2)
    if verdict == "failed":
        # Their running statistics part, and with them the ranks: nothing is saved.
        assert set(launch_checked(ranks, config, entry=entry)) == {6}, last_words(config)
        assert "update of step 1: failed" in last_words(config)
        return
    updates = train_checked(ranks, config, entry=entry)
    assert list_verdicts(updates) == [("passed", None)] * 3
    assert all("statistics" in one["compared"] for one in updates)
