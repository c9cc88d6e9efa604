"""What processes did on the phantom's cards, read from what each has left in a folder."""

import array
from dataclasses import dataclass

from tests.phantom.cards import COUNTED, COUNTED_BY_DEVICE, NUM_DEVICES, count_places


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Of one process; what the names mean stands in tests/phantom/cards.py."""

    pid: int
    waits: int
    launches: int
    collectives: int
    plans: int
    device_allocations: int
    host_allocations: int
    touched: tuple[int, ...]
    held_bytes: tuple[int, ...]
    highest_bytes: tuple[int, ...]

    @property
    def devices(self):
        """The devices on which the process has a context."""
        return {device for device, calls in enumerate(self.touched) if calls}


def read_counts(folder):
    """Return what every process counted that has asked for a card at all, in the order of their numbers."""
    return [_read(path) for path in sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name))]


def _read(path):
    numbers = array.array("q", path.read_bytes())
    assert len(numbers) == count_places(), f"{path}: {len(numbers)} numbers"
    single = dict(zip(COUNTED, numbers, strict=False))
    rest = numbers[len(COUNTED) :]
    parts = {
        name: tuple(rest[turn * NUM_DEVICES : (turn + 1) * NUM_DEVICES]) for turn, name in enumerate(COUNTED_BY_DEVICE)
    }
    return Counts(pid=int(path.name), **single, **parts)
