"""What a work ledger comes to, in memory that does not grow with its samples, and how two sets of rows differ."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.record.ledger_file import ENTRY_BYTES, LEDGER_COLUMNS, LEDGER_DTYPE, sum_mixed

Numbers = NDArray[np.integer]
_ROW_BITS = 32
_PART_BYTES = 2**16 * ENTRY_BYTES


class Samples(NamedTuple):
    """Some entries of a ledger.int32, one per sample that was learned from: each (num_samples,)."""

    rank: Numbers
    step: Numbers
    row_id: Numbers
    num_tokens: Numbers


def read_samples(entries: BinaryIO) -> Iterator[Samples]:
    """Yield all entries of a ledger.int32, part by part; raises ValueError or OSError if it is none."""
    while raw := entries.read(_PART_BYTES):
        numbers = np.frombuffer(raw, dtype=LEDGER_DTYPE).reshape(-1, len(LEDGER_COLUMNS))
        if numbers.min() < 0:
            name = LEDGER_COLUMNS[int(numbers.min(axis=0).argmin())]
            raise ValueError(f"{name} is {numbers.min()}; allowed: 0 or more")
        yield Samples(*numbers.T)


@dataclass(frozen=True)
class Ledger:
    """What all samples of a work ledger come to."""

    num_samples: int
    num_tokens: int
    rows_digest: int
    """The same for the same rows, each as often, in any order."""
    steps_digest: int
    """The same for the same rows in the same steps."""


def make_ledger(parts: Iterable[Samples]) -> Ledger:
    """Return what the samples come to."""
    num_samples = num_tokens = rows = placed = 0
    for part in parts:
        num_samples += len(part.row_id)
        num_tokens += int(part.num_tokens.sum(dtype=np.int64))
        rows += sum_mixed(part.row_id)
        placed += sum_mixed(_pack_step_row(part.step, part.row_id))
    return Ledger(num_samples, num_tokens, rows % 2**64, placed % 2**64)


def digest_rows(parts: Iterable[Numbers]) -> int:
    """Return the rows_digest of a ledger that holds each of these rows once."""
    return sum_mixed(np.unique(_join(parts)))


def digest_steps(parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> int:
    """Return the steps_digest of a ledger that holds these samples, given as (steps, row ids)."""
    return sum(sum_mixed(_pack_step_row(step, row_id)) for step, row_id in parts) % 2**64


@dataclass(frozen=True)
class OtherSteps:
    """How two ledgers differ in which rows each step learned from."""

    num_samples: int
    """In one of the two and not in the other, counted as often as they occur."""
    first_step: int
    """The first that has other rows."""
    first_row: int
    """The first of its rows that one has more often than the other."""


def compare_steps(mine: Iterable[Samples], its: Iterable[Samples]) -> OtherSteps:
    """Return how two ledgers with different steps_digest differ."""
    item, other = (_join(_pack_step_row(part.step, part.row_id) for part in parts) for parts in (mine, its))
    values, places = np.unique(np.concatenate([item, other]), return_inverse=True)
    excess = np.abs(np.bincount(places, np.repeat([1.0, -1.0], [item.size, other.size])))
    first = divmod(int(values[np.argmax(excess > 0)]), 2**_ROW_BITS)
    return OtherSteps(int(excess.sum()), *first)


@dataclass(frozen=True)
class OtherRows:
    """How the rows that were learned from differ from those that should have been."""

    num_expected: int
    num_left_out: int
    num_repeated: int
    """Rows that were used more than once."""
    num_foreign: int
    """Rows that are not among those expected."""


def compare_rows(samples: Iterable[Samples], expected: Iterable[Numbers]) -> OtherRows:
    """Return how the rows of a ledger differ from the expected ones, of which each should be there once."""
    used, counts = np.unique(_join(part.row_id for part in samples), return_counts=True)
    wanted = np.unique(_join(expected))
    left_out, foreign = np.setdiff1d(wanted, used), np.setdiff1d(used, wanted)
    return OtherRows(wanted.size, left_out.size, int((counts > 1).sum()), foreign.size)


def _join(parts: Iterable[Numbers]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64, copy=False)


def _pack_step_row(step: Numbers, row_id: Numbers) -> NDArray[np.int64]:
    """Return step and row of each sample as one number: (num_samples,)."""
    return (step.astype(np.int64) << _ROW_BITS) + row_id.astype(np.int64)
