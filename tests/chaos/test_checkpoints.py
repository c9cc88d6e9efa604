"""Saves that break off at any point, and checkpoints that are damaged afterwards."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.crash_points import KINDS, crash_everywhere
from tests.chaos.saved import NEWEST, OLDER, STEPS_PER_SEGMENT, Saved
from training.state.receipt import RECEIPT


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    """What a killed run left."""
    return Saved(tmp_path_factory.mktemp("saved"), ranks)


@pytest.mark.slow
def test_a_crash_at_any_point_of_a_save_leaves_the_previous_or_the_new_checkpoint(saved):
    found = list(crash_everywhere(saved))
    assert [problem for _, problem in found if problem] == []
    assert {kind for kind, _ in found} == KINDS
    assert len(found) > 50, "the injection met too few points to prove anything"


def _flip_a_bit(content, choose):
    flipped = bytearray(content)
    flipped[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    return bytes(flipped)


def _cut_short(content, choose):
    return content[: choose.randrange(len(content))]


@pytest.mark.slow
@pytest.mark.parametrize("harm", [_flip_a_bit, _cut_short])
def test_damage_to_any_file_is_seen_and_the_previous_checkpoint_used(harm, saved):
    choose = random.Random(0)
    for is_finished in (False, True):
        number, num_files = 0, 1
        while number < num_files:
            work = saved.copy()
            folder, previous = saved.partial(work, NEWEST), OLDER
            if is_finished:
                saved.next_finished_save(work)()
                folder, previous = saved.finished(work), STEPS_PER_SEGMENT
            files = sorted(folder.iterdir())
            file, num_files = files[number], len(files)
            content = file.read_bytes()
            file.unlink()  # it is a link
            file.write_bytes(harm(content, choose))
            start = saved.next_start(work)
            assert len(start.refused) == 1, file
            assert (start.stands_after, start.checksum) == (previous, saved.checksums[previous]), file
            number += 1
        assert num_files > 4


def test_the_order_of_a_save_is_that_of_the_protocol(saved, monkeypatch):
    work = saved.copy()
    save = saved.next_partial_save(work)
    calls, paths = [], {}

    def watch(name, real):
        def watched(*arguments, **options):
            result = real(*arguments, **options)
            if name == "open":
                paths[result] = Path(arguments[0]).name
            else:
                calls.append((name, paths[arguments[0]] if name == "fsync" else Path(arguments[-1]).name))
            return result

        return watched

    with monkeypatch.context() as patched:
        for name in ("open", "fsync", "rename", "unlink"):
            patched.setattr(os, name, watch(name, getattr(os, name)))
        save()
    folder = saved.partial(work, NEWEST + 2)
    written = [("fsync", name) for name in sorted(file.name for file in folder.iterdir()) if name != RECEIPT]
    assert len(written) == 4
    temporary = calls[5][1]
    assert temporary.startswith(f"{folder.name}.tmp-")
    assert calls[:8] == [
        *written,
        ("fsync", RECEIPT),
        ("fsync", temporary),
        ("rename", folder.name),
        ("fsync", folder.parent.name),
    ]
    # Only then is the oldest removed, by a name that nothing loads.
    assert calls[8][0] == "rename"
    assert ".tmp-" in calls[8][1]
    assert {kind for kind, _ in calls[9:]} == {"unlink"}
    assert [path.name for path in sorted(folder.parent.iterdir())] == ["step-00000004", "step-00000006"]
