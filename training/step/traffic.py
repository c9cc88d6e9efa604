"""What the ranks put into collectives, as torch's flight recorder has it.

The process groups enter every collective there themselves, whoever calls it, DDP's reducer in C++ included, and the
recorder is on by default: to read it when the clock stands costs a step nothing.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor

from ddp_audit.process.flight_recorder import read_recorded
from training.process import torch_private
from training.process.distributed import Ranks

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST = "all_reduce", "all_gather", "reduce_scatter", "broadcast"
"""Kinds of collectives; a strategy with another one names it."""

STATISTIC = "statistic"
"""What batch normalisation exchanges (training/strategies/ddp), gathered and added up alike: a kind of its own."""

SEND = "send"
"""What goes from one rank to one other: no collective, and not in torch's record on every backend."""


class Traffic(NamedTuple):
    """What a rank put into collectives of the group of the gradients, or sent to another rank."""

    number: int
    """Collectives, or messages."""
    num_bytes: int
    """Bytes that they were given."""


class Sent:
    """What this rank put into collectives, or sent, so far, by kind."""

    def __init__(self) -> None:
        self.counts: dict[str, Traffic] = {}

    def count(self, kind: str, tensor: Tensor) -> None:
        """Note one more."""
        self.add(kind, Traffic(1, tensor.nbytes))

    def add(self, kind: str, more: Traffic) -> None:
        """Note several more."""
        now = self.counts.get(kind, Traffic(0, 0))
        self.counts[kind] = Traffic(now.number + more.number, now.num_bytes + more.num_bytes)

    def take(self) -> dict[str, Traffic]:
        """Return it, and forget it."""
        taken, self.counts = self.counts, {}
        return taken


def count_exchanges(ranks: Ranks) -> tuple[int, ...]:
    """Return how many collectives each group of the gradients has begun: counted by torch."""
    return tuple(torch_private.count_begun(group) for group in _list_groups(ranks))


def _list_groups(ranks: Ranks) -> list[Any]:
    return [ranks.gradient_group, *ranks.counted_groups]


class Recorded:
    """What the recorder has of the gradients' collectives, read once; it keeps the last few thousand of all groups."""

    def __init__(self, ranks: Ranks) -> None:
        self._names = [group.group_name for group in _list_groups(ranks)]
        self._bytes = {at: num_bytes for at, (_, num_bytes) in read_recorded(ranks.backend).items()}

    def between(self, start: Sequence[int], end: Sequence[int]) -> Traffic | None:
        """Return what the collectives after these numbers up to those were given, group by group; None unless all are
        told."""
        results = []
        for group, (before, after) in zip(self._names, zip_longest(start, end, fillvalue=0), strict=False):
            results += [self._bytes.get((group, number)) for number in range(before + 1, after + 1)]
        texts = [num_bytes for num_bytes in results if num_bytes is not None]
        return Traffic(len(texts), sum(texts)) if len(texts) == len(results) else None
