"""What a work ledger comes to, and how two sets of rows differ; memory does not grow with the samples."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.records.slices import Numbers
from tasks.records.sorted_numbers import Sorted, SortedNumbers, read_windows
from training.record.ledger_file import ENTRY_BYTES, LEDGER_COLUMNS, LEDGER_DTYPE

_ROW_BITS = 32
_PART_BYTES = 2**16 * ENTRY_BYTES


class Samples(NamedTuple):
    """Some entries of a ledger.int32, one per sample that was learned from: each (num_samples,)."""

    rank: Numbers
    step: Numbers
    row_id: Numbers
    num_tokens: Numbers


def read_samples(file: Path) -> Iterator[Samples]:
    """Yield all entries of a ledger.int32, part by part; raises ValueError or OSError if it is none."""
    with file.open("rb") as entries:
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
    rows_digest: str
    """sha256 of the row ids in ascending order: the same for the same rows, each as often."""
    steps_digest: str
    """sha256 of step and row id of each sample in ascending order: the same for the same rows in the same steps."""


def make_ledger(parts: Iterable[Samples]) -> Ledger:
    """Return what the samples come to."""
    num_tokens, rows, placed = 0, SortedNumbers(), SortedNumbers()
    for part in parts:
        rows.extend(part.row_id)
        placed.extend(_pack_step_row(part.step, part.row_id))
        num_tokens += int(part.num_tokens.sum(dtype=np.int64))
    return Ledger(len(rows), num_tokens, _digest(_read_all(rows)), _digest(_read_all(placed)))


def digest_rows(parts: Iterable[Numbers]) -> str:
    """Return the rows_digest of a ledger that holds each of these rows once."""
    return _digest(map(np.unique, _read_all(SortedNumbers(parts))))


def digest_steps(parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> str:
    """Return the steps_digest of a ledger that holds these samples, given as (steps, row ids)."""
    return _digest(_read_all(SortedNumbers(_pack_step_row(step, row_id) for step, row_id in parts)))


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
    num_samples, first = 0, None
    both = [SortedNumbers(_pack_step_row(part.step, part.row_id) for part in parts) for parts in (mine, its)]
    for one, other in read_windows(*both):
        values, places = np.unique(np.concatenate([one, other]), return_inverse=True)
        signs = np.concatenate([np.ones(one.size), -np.ones(other.size)])
        excess = np.abs(np.bincount(places, signs))
        num_samples += int(excess.sum())
        if first is None and excess.any():
            first = divmod(int(values[np.argmax(excess > 0)]), 2**_ROW_BITS)
    assert first is not None, "other digests, and the same samples"
    return OtherSteps(num_samples, *first)


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
    sums = np.zeros(4, dtype=np.int64)
    used, wanted = SortedNumbers(part.row_id for part in samples), SortedNumbers(expected)
    for one, other in read_windows(used, wanted):
        (found, counts), there = np.unique(one, return_counts=True), np.unique(other)
        left_out, foreign = np.setdiff1d(there, found), np.setdiff1d(found, there)
        sums += [there.size, left_out.size, int((counts > 1).sum()), foreign.size]
    return OtherRows(*sums.tolist())


def _pack_step_row(step: Numbers, row_id: Numbers) -> NDArray[np.int64]:
    """Return step and row of each sample as one number: (num_samples,)."""
    return (step.astype(np.int64) << _ROW_BITS) + row_id.astype(np.int64)


def _read_all(numbers: SortedNumbers) -> Iterator[Sorted]:
    return (window for (window,) in read_windows(numbers))


def _digest(parts: Iterable[Sorted]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return digest.hexdigest()
