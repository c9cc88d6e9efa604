"""Bits that flip and files that end early, in every file of a checkpoint."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.saved import NEWEST, OLDER, STEPS_PER_SEGMENT, Saved
from tests.chaos.trial import Trial

Harm = Callable[[Path, random.Random], None]


def flip_a_bit(file: Path, choose: random.Random) -> None:
    """Turn a random bit of the file over."""
    content = bytearray(file.read_bytes())
    file.unlink()
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    file.write_bytes(content)


def cut_short(file: Path, choose: random.Random) -> None:
    """Cut the file off at a random place."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[: choose.randrange(len(content))])


def flip_trials(saved: Saved, *, num_trials: int) -> Iterator[Trial]:
    """Flip one bit in one file at a time: in turn of the newest partial checkpoint and of a finished segment."""
    return _trials(saved, flip_a_bit, num_trials=num_trials, seed=0)


def truncation_trials(saved: Saved, *, num_trials: int) -> Iterator[Trial]:
    """Cut off one file at a time, of the same."""
    return _trials(saved, cut_short, num_trials=num_trials, seed=1)


def _trials(saved: Saved, harm: Harm, *, num_trials: int, seed: int) -> Iterator[Trial]:
    choose = random.Random(seed)
    for number in range(num_trials):
        work = saved.copy()
        is_partial = number % 2 == 0
        if is_partial:
            folder, previous = saved.partial(work, NEWEST), OLDER
        else:
            saved.next_finished_save(work)()
            folder, previous = saved.segment(work, 1), STEPS_PER_SEGMENT
        file = choose.choice(sorted(folder.iterdir()))
        harm(file, choose)
        start = saved.next_start(work)
        where = f"{file.relative_to(work)}: "
        if len(start.refused) != 1:
            yield Trial(problem=f"{where}refused: {start.refused}")
        elif start.stands_after != previous or start.checksum != saved.checksums[previous]:
            yield Trial(problem=f"{where}goes on after step {start.stands_after}, wanted {previous}")
        else:
            yield Trial()
