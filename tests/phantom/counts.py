"""What processes did on the phantom's cards, read from what each has left in a folder."""

import array
from collections import namedtuple

from tests.phantom.cards import COUNTED, COUNTED_BY_DEVICE, NUM_COUNTED, NUM_DEVICES


class Counts(namedtuple("_Counts", ("pid", *COUNTED, *COUNTED_BY_DEVICE))):
    """Of one process; what the names mean stands in tests/phantom/cards.py."""

    @property
    def devices(self):
        """The devices on which the process has a context."""
        return {device for device, calls in enumerate(self.touched) if calls}


def read_counts(folder):
    """Return what every process counted that has asked for a card at all, in the order of their numbers."""
    counts, first = [], len(COUNTED)
    for path in folder.glob("[0-9]*"):
        numbers = array.array("q", path.read_bytes())
        assert len(numbers) == NUM_COUNTED, f"{path}: {len(numbers)} numbers"
        parts = (tuple(numbers[at : at + NUM_DEVICES]) for at in range(first, len(numbers), NUM_DEVICES))
        counts.append(Counts(int(path.name), *numbers[:first], *parts))
    return sorted(counts)
