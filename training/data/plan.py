"""Which samples make up which optimizer step, and which rank takes them: pure functions of numbers.

The micro-batches of a step, their samples and their shapes do not depend on the number of ranks; only who runs
them does. That is what makes cells comparable, and equal up to the rounding of sums.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from training.config import SegmentConfig, TrainingConfig
from training.data.batches import MicroBatch, Rows, count_label_tokens


@dataclass(frozen=True)
class StepPlan:
    """One optimizer step, for all ranks."""

    micro_batches: tuple[np.ndarray, ...]
    """Rows of the slice in each micro-batch, the longest micro-batch first, longest rows first; each int64."""
    num_tokens: int
    """What the whole global batch counts in a throughput."""
    num_targets: int
    """Labels of the whole global batch: what the loss is divided by."""
    is_packed: bool = False
    """Whether the rows of a micro-batch are one sequence together; then there may be any number of them in it."""

    def select_for_rank(self, rank: int, world_size: int) -> list[int | None]:
        """Return the micro-batches (by index) that the rank runs, None for a dummy; equally many on every rank.

        They are dealt to and fro (0 1 1 0 0 1 ...), which evens out their falling lengths. The longest is run last:
        that is where a strategy can hide communication behind computation.
        """
        num_rounds = -(-len(self.micro_batches) // world_size)
        places = [
            turn * world_size + (rank if turn % 2 == 0 else world_size - 1 - rank)
            for turn in reversed(range(num_rounds))
        ]
        return [place if place < len(self.micro_batches) else None for place in places]


@dataclass(frozen=True)
class SegmentPlan:
    """All optimizer steps of one pass over one range."""

    order: np.ndarray
    """(num_rows,) int64: the rows of the slice in the order of this epoch, each exactly once."""
    lengths: np.ndarray
    """(num_rows,) int64: how long each row of the slice is, after cutting."""
    num_tokens: np.ndarray
    """(num_rows,) int64: what each counts in a throughput."""
    num_targets: np.ndarray
    """(num_rows,) int64: what each weighs in the loss."""
    global_batch_size: int
    """Samples per optimizer step; the last step takes what is left."""
    micro_batch_size: int
    """Samples per micro-batch at most; packed: on average."""
    is_packed: bool = False
    """Whether micro-batches are packed."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the segment."""
        return -(-len(self.order) // self.global_batch_size)

    def step(self, segment_step: int) -> StepPlan:
        """Return the plan of a step, counted from 1."""
        start = (segment_step - 1) * self.global_batch_size
        rows = self.order[start : start + self.global_batch_size]
        rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
        if self.is_packed:
            num_packs = -(-len(rows) // self.micro_batch_size)
            packs: list[list[int]] = [[] for _ in range(num_packs)]
            sizes = [(0, index) for index in range(num_packs)]
            for row, length in zip(rows.tolist(), self.lengths[rows].tolist(), strict=True):
                size, index = sizes[0]
                packs[index].append(row)
                # Not even a row without a token leaves another pack empty.
                heapq.heapreplace(sizes, (size + max(length, 1), index))
            micro_batches = tuple(
                np.array(packs[index]) for _, index in sorted(sizes, key=lambda pair: (-pair[0], pair[1]))
            )
        else:
            cuts = range(self.micro_batch_size, len(rows), self.micro_batch_size)
            micro_batches = tuple(np.split(rows, list(cuts)))
        return StepPlan(
            micro_batches=micro_batches,
            num_tokens=int(self.num_tokens[rows].sum()),
            num_targets=int(self.num_targets[rows].sum()),
            is_packed=self.is_packed,
        )

    def find_largest_step(self) -> int:
        """Return the step, from 1, whose first micro-batch is the largest; packed: that has the largest on average."""
        lengths, size = self.lengths[self.order], self.micro_batch_size
        starts = np.arange(0, len(lengths), self.global_batch_size)
        num_rows = np.diff(starts, append=len(lengths))
        if self.is_packed:
            return int(np.argmax(np.add.reduceat(lengths, starts) / -(-num_rows // size))) + 1
        return int(np.argmax(np.maximum.reduceat(lengths, starts) * np.minimum(num_rows, size))) + 1


def plan_segment(
    lengths: np.ndarray,
    *,
    seed: int,
    epoch: int,
    rows: str,
    global_batch_size: int,
    micro_batch_size: int,
    is_packed: bool = False,
    num_tokens: np.ndarray | None = None,
    num_targets: np.ndarray | None = None,
) -> SegmentPlan:
    """Return the plan for rows of these lengths: a pure function of the seed, the epoch and the range `rows`.

    What each row counts and weighs is, unless given, its label tokens.
    """
    start, end = (int(part) for part in rows.split("-"))
    order = np.random.default_rng([seed, epoch, start, end]).permutation(len(lengths))
    num_labels = count_label_tokens(lengths)
    return SegmentPlan(
        order=order,
        lengths=lengths,
        num_tokens=num_labels if num_tokens is None else num_tokens,
        num_targets=num_labels if num_targets is None else num_targets,
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        is_packed=is_packed,
    )


def make_segment_plan(source: Rows, config: TrainingConfig, segment: SegmentConfig) -> SegmentPlan:
    """Return the plan of a segment whose rows are those of `source`."""
    return plan_segment(
        source.lengths(config.seq_len),
        num_tokens=source.num_tokens(config.seq_len),
        num_targets=source.num_targets(config.seq_len),
        seed=config.seed,
        epoch=segment.epoch,
        rows=segment.range,
        global_batch_size=config.global_batch_size,
        micro_batch_size=config.micro_batch_size,
        is_packed=config.packing,
    )


def make_micro_batches(
    source: Rows, step: StepPlan, *, rank: int, world_size: int, seq_len: int, seed: tuple[int, int]
) -> Iterator[MicroBatch]:
    """Yield what the rank runs in a step, dummies included; `seed`: the run's seed and the step's number."""
    for index in step.select_for_rank(rank, world_size):
        if index is not None:
            yield make_micro_batch(source, step, index, seq_len=seq_len, seed=seed)
        else:
            yield source.make_dummy_micro_batch(seq_len)


def make_micro_batch(source: Rows, step: StepPlan, index: int, *, seq_len: int, seed: tuple[int, int]) -> MicroBatch:
    """Return one micro-batch of a step, the same on whichever rank; `seed` as above."""
    dropout_seed = int(np.random.SeedSequence([*seed, index]).generate_state(1)[0])
    rows = step.micro_batches[index].tolist()
    made = source.collate(rows, seq_len=seq_len, is_packed=step.is_packed)
    return replace(made, dropout_seed=dropout_seed, place=index)
