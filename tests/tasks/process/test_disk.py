"""A disk is asked before anything is computed."""

import shutil
import subprocess

import pytest

from tasks.process.failure import ResourceError
from tasks.train import require_room, require_writable


def test_room_for_all_checkpoints_and_a_fifth_is_asked_for_and_the_numbers_are_said(small_disk):
    free = shutil.disk_usage(small_disk).free
    require_room(small_disk, int(free / 2.2) - 1, num=2, what="checkpoint")
    size = int(free / 2.2) + 10
    with pytest.raises(ResourceError) as caught:
        require_room(small_disk, size, num=2, what="checkpoint")
    said = str(caught.value)
    assert f"{free:,} bytes are free, {int(2.2 * size):,} are needed: 2.2 times {size:,} of a checkpoint" in said
    assert (caught.value.exit_code, said.count("\n")) == (4, 0)


def test_a_disk_that_is_read_only_or_not_there_is_named(small_disk, tmp_path):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ResourceError, match=f"{small_disk}/work: Read-only file system; nothing was started") as caught:
        require_writable(tmp_path / "fine", small_disk / "work")
    assert caught.value.exit_code == 4
    # What is left of a disk that was taken away: a link to nowhere.
    (tmp_path / "data").symlink_to(tmp_path / "unmounted" / "data")
    with pytest.raises(ResourceError, match=f"{tmp_path}/data: File exists; nothing was started"):
        require_writable(tmp_path / "data")
