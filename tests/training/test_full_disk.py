"""A checkpoint that the disk does not take: exit code 4, one line with the numbers, and the one before it whole."""

import re
import shutil

import pytest

from tests.training.conftest import are_bitwise_equal, weights_at_end
from tests.training.forked_ranks import last_words
from training.process.failure import EXIT_NO_RESOURCES

_CHECKPOINT_BYTES = 82_000 * 4 * 3
"""Weights and two moments of the tiny model, at least: two fit on the disk, and no third."""


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", [int(_CHECKPOINT_BYTES * 2.8)], indirect=True)
def test_on_a_full_disk_all_ranks_end_with_needed_and_free_bytes_and_go_on_once_there_is_room(
    small_disk, toy, ranks, trained
):
    # Where the log is on the full disk, too, a rank may find no room for its last word.
    config = toy.tell("disk/work", world_size=2, checkpoint_every_steps=1)
    (small_disk / "work").mkdir()
    for rank in range(2):
        (small_disk / "work" / f"rank-{rank}.log").symlink_to(toy.folder / f"rank-{rank}.log")
    assert ranks.launch(config) == [EXIT_NO_RESOURCES] * 2 == [4, 4], last_words(config)
    said = re.findall(
        r"No space left on device: a checkpoint needs ([\d,]+) bytes, ([\d,]+) are free", last_words(config)
    )
    assert len(said) == 2
    for needed, free in ([int(number.replace(",", "")) for number in one] for one in said):
        assert needed >= _CHECKPOINT_BYTES
        assert free < needed
    assert "Traceback" not in last_words(config)
    assert sorted(path.name for path in small_disk.glob("work/partial/*/*")) == ["step-00000001", "step-00000002"]
    roomy = {**config, "work_dir": str(shutil.copytree(small_disk / "work", toy.folder / "roomy"))}
    ranks.train(roomy)
    assert are_bitwise_equal(weights_at_end(roomy), weights_at_end(trained(world_size=2)))
