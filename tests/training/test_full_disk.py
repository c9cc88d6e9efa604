"""A checkpoint that the disk does not take: exit code 4, one line with the numbers, and the one before it whole."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.training.conftest import are_bitwise_equal, weights_at_end
from tests.training.forked_ranks import last_words
from training.process.failure import EXIT_NO_RESOURCES

_CHECKPOINT_BYTES = 82_000 * 4 * 3
"""Weights and two moments of the tiny model, at least."""


@pytest.fixture
def small_disk(tmp_path):
    """A disk with room for two checkpoints and no third; skips where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={int(_CHECKPOINT_BYTES * 2.8)}", "tmpfs", folder]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no small tmpfs can be mounted here")
    yield folder
    # Lazily: the event stream of a launch in this process is still open.
    subprocess.run(["umount", "-l", folder], check=True)


def _partials(config):
    folder = Path(config["work_dir"]) / "partial" / config["segments"][0]["fingerprint"]
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
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
    assert _partials(config) == ["step-00000001", "step-00000002"]
    roomy = {**config, "work_dir": str(shutil.copytree(small_disk / "work", toy.folder / "roomy"))}
    ranks.train(roomy)
    assert are_bitwise_equal(weights_at_end(roomy), weights_at_end(trained(world_size=2)))
