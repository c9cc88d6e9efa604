"""Batch normalisation over the rows of all ranks: exactly that of one process, layer by layer and run by run."""

import pytest

from tests.images import make_image_slice
from tests.training.forked_ranks import last_words
from tests.training.replays import check, launch_checked, list_verdicts, train_checked


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["training.__main__", "tests.training.apart"])
def test_updates_with_statistics_of_all_ranks_pass_and_no_others(entry, ranks, toy):
    # Two steps, in whose last forward a rank of two has no row. Few steps of images that are not too small: over the
    # fewest values a rounding becomes 30 times as much in each.
    slices = [make_image_slice(toy.folder / "slice", num_rows=14, size=64)]
    told = toy.tell(
        workload="image_classification", model="resnet18, normed", slices=slices, optimizer="sgd", learning_rate=0.01,
        max_grad_norm=5.0, micro_batch_size=2, statistics_rows=4, augment="flip_shift", world_size=2,
    )  # fmt: skip
    config = check(told, 1, 2)
    if entry == "tests.training.apart":
        # Their running statistics part, and with them the ranks: nothing is saved.
        assert set(launch_checked(ranks, config, entry=entry)) == {6}, last_words(config)
        assert "update of step 1: failed" in last_words(config)
        return
    updates = train_checked(ranks, config)
    assert list_verdicts(updates) == [("passed", None)] * 2
    assert all("statistics" in one["compared"] for one in updates)
