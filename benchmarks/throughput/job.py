"""What all peers train on: the same rows in the same blocks, whatever each of them makes of it."""

import json
from dataclasses import dataclass

import numpy as np

from training.config import TrainingConfig, read_config
from training.data.batches import Rows
from training.data.plan import plan_segment
from training.workloads import find_workload

JOB_FILE = "job.json"
TRAINING_FILE = "config.json"
AS_GIVEN = "as_given"
"""The order of rows that evens out nothing."""
BY_LENGTH = "by_length"
"""Longest first within a block."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one peer."""

    peer: str
    """Name of a file in benchmarks/throughput/peers/."""
    training: TrainingConfig
    """Model, rows, batch, precision: as our own ranks are told."""
    steps_per_block: int
    """Timed optimizer steps of a block."""
    source: Rows
    """The rows."""
    order: np.ndarray
    """(num_rows,) int64: the rows in the order of the plan that our own ranks follow."""

    @property
    def global_batch_size(self):
        """Samples per optimizer step, all ranks together."""
        return self.training.global_batch_size

    @property
    def num_blocks(self):
        """Blocks until the rows begin again; each has one step more than are timed, to warm up."""
        return len(self.order) // self.global_batch_size // (self.steps_per_block + 1)

    @property
    def micro_batch_sizes(self):
        """Rows of a micro-batch that are worth trying on a CPU: those that split the rank's share."""
        share = self.global_batch_size // self.training.world_size
        # Small ones have few logits, of which there are many only where every token has some.
        sizes = (1, 2, 4, 8) if self.training.workload == "causal_lm" else (4, 8, 16, 32)
        return [size for size in sizes if size <= share and share % size == 0] or [share]

    def steps_of(self, block):
        """Return the steps of a block, from 1: consecutive ones, of which the first is not timed."""
        first = (block % self.num_blocks) * (self.steps_per_block + 1) + 1
        return list(range(first, first + self.steps_per_block + 1))

    def rows_of(self, step):
        """Return the rows of a step's global batch: (global_batch_size,) int64."""
        start = (step - 1) * self.global_batch_size
        return self.order[start : start + self.global_batch_size]

    def tokens(self, row):
        """Return the tokens of a row of text, cut to the sequence length: (length,) int32."""
        texts = self.source
        return texts.row(row, self.training.seq_len)

    def rows_by_length(self, rows):
        """Return the rows, longest first."""
        lengths = self.source.lengths(self.training.seq_len)[rows]
        return rows[np.argsort(-lengths, kind="stable")]

    def sequence(self, *, by_length, first_block=0):
        """Return all rows of all blocks in order, from `first_block` on and round to it.

        By length: the timed rows of a block are sorted as a whole, so that a micro-batch has rows of like length, and
        a block still has the rows that it has for everybody.
        """
        rows = []
        for block in range(first_block, first_block + self.num_blocks):
            lead_in, *timed = (self.rows_of(step) for step in self.steps_of(block))
            batch = np.concatenate(timed)
            rows += [lead_in, self.rows_by_length(batch) if by_length else batch]
        return [int(row) for row in np.concatenate(rows)]

    def num_units(self, block):
        """Return the real tokens, without padding, or images of a block's timed steps, all ranks together."""
        counts_tokens = find_workload(self.training.workload).UNIT == "token"
        count = self.source.lengths if counts_tokens else self.source.num_tokens
        return self._sum_timed(count(self.training.seq_len), block)

    def num_targets(self, block):
        """Return what is predicted in them: all tokens but the first of every row, or the class of every row."""
        return self._sum_timed(self.source.num_targets(self.training.seq_len), block)

    def _sum_timed(self, of_rows, block):
        return int(sum(of_rows[self.rows_of(step)].sum() for step in self.steps_of(block)[1:]))


def read_job(folder):
    """Return the job whose files stand in a peer's work folder; raises ValueError for rows too few for a block."""
    raw = json.loads((folder / JOB_FILE).read_bytes())
    training = read_config(folder / TRAINING_FILE)
    segment = training.segments[0]
    source = find_workload(training.workload).open_slice(segment.slice_dir)
    plan = plan_segment(
        source.lengths(training.seq_len), seed=training.seed, epoch=segment.epoch, rows=segment.range,
        global_batch_size=training.global_batch_size, micro_batch_size=training.micro_batch_size,
    )  # fmt: skip
    job = Job(
        peer=raw["peer"], training=training, steps_per_block=raw["steps_per_block"], source=source, order=plan.order
    )
    if job.num_blocks < 1:
        needed = (job.steps_per_block + 1) * job.global_batch_size
        raise ValueError(f"{segment.slice_dir}: {len(source)} rows; a block needs {needed}")
    return job


def padded(rows, *, length, multiple_of=1):
    """Return rows of tokens as a padded micro-batch: input_ids, attention_mask and labels, each (rows, length) int64.

    As transformers' models expect it: labels are the tokens themselves, -100 where there is padding.
    """
    import torch

    length = -(-length // multiple_of) * multiple_of
    input_ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    labels = np.full((len(rows), length), -100, dtype=np.int64)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = labels[index, : len(row)] = row
        mask[index, : len(row)] = 1
    arrays = {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
