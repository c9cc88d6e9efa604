"""Rows of tokens on disk, and micro-batches of them in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.failure import BadCheckpointError

IGNORED_LABEL = -100
"""The label of a position that predicts nothing; cross_entropy leaves it out."""

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class Slice:
    """The rows of one range, memory-mapped: nothing is read before it is used."""

    tokens: np.ndarray
    """(num_tokens,) int32: all rows, one after another."""
    offsets: np.ndarray
    """(num_rows + 1,) int64: row i is tokens[offsets[i]:offsets[i + 1]]."""
    row_ids: np.ndarray
    """(num_rows,) int64: position of each row in the data set."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return the tokens of every row after cutting to `seq_len`: (num_rows,) int64."""
        return np.minimum(np.diff(self.offsets), seq_len)

    def row(self, index: int, seq_len: int) -> np.ndarray:
        """Return the first `seq_len` tokens of a row: (length,) int32."""
        start, end = self.offsets[index], self.offsets[index + 1]
        return self.tokens[start : min(end, start + seq_len)]


@dataclass(frozen=True)
class MicroBatch:
    """What one rank puts through the model in one forward pass."""

    input_ids: Tensor
    """(num_samples, padded_len) int64, padded on the right."""
    labels: Tensor
    """(num_samples, padded_len) int64: the token after each position, IGNORED_LABEL where there is none."""
    row_ids: np.ndarray
    """(num_samples,) int64: position of each row in the data set; empty for a dummy."""
    sample_num_tokens: np.ndarray
    """(num_samples,) int64: label tokens of each row; empty for a dummy."""
    num_padding_tokens: int
    """Positions that hold padding; 0 for a dummy."""
    dropout_seed: int = 0
    """Seed of dropout in this micro-batch: a function of the step and the micro-batch, never of the rank."""
    place: int | None = None
    """Which of the step's micro-batches it is, from 0; None for a dummy and outside of steps."""

    @property
    def num_samples(self) -> int:
        """Rows in it; 0 for a dummy."""
        return len(self.row_ids)

    @property
    def num_tokens(self) -> int:
        """Label tokens in it."""
        return int(self.sample_num_tokens.sum())

    def to(self, device: torch.device) -> "MicroBatch":
        """Return it on the device; from pinned memory the copy runs beside the host."""
        if device.type == "cpu":
            return self
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )

    def pinned(self) -> "MicroBatch":
        """Return it in page-locked host memory."""
        return replace(self, input_ids=self.input_ids.pin_memory(), labels=self.labels.pin_memory())


def open_slice(folder: Path) -> Slice:
    """Return the slice of a folder with tokens.npy, offsets.npy and row_ids.npy.

    Raises ValueError if the three do not belong together, BadCheckpointError if one is no plain array.
    """
    try:
        tokens, offsets, row_ids = (
            # A plain view of the mapping: slicing np.memmap itself is several times slower.
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in ("tokens", "offsets", "row_ids")
        )
    except (ValueError, EOFError, OverflowError) as error:
        raise BadCheckpointError(f"{folder}: not loadable: {error}; the slice stage makes it anew") from None
    if len(row_ids) == 0:
        raise ValueError(f"{folder}: got 0 rows; allowed: at least 1")
    if len(offsets) != len(row_ids) + 1 or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError(
            f"{folder}: {len(row_ids)} row ids, {len(offsets)} offsets up to {offsets[-1]} and {len(tokens)} tokens do "
            "not belong together; the slice stage makes them anew"
        )
    return Slice(tokens=tokens, offsets=offsets, row_ids=row_ids)


def collate(
    source: Slice, rows: Sequence[int], *, seq_len: int, dropout_seed: int = 0, place: int | None = None
) -> MicroBatch:
    """Return the rows as one micro-batch, as long as its longest row rounded up to 8, at most `seq_len`."""
    texts = [source.row(index, seq_len) for index in rows]
    longest = max((len(text) for text in texts), default=1)
    padded_len = min(-(-max(longest, 1) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, seq_len)
    # Any valid id pads: attention is causal and the padding comes last, so no real position ever sees it.
    input_ids = np.zeros((len(texts), padded_len), dtype=np.int64)
    labels = np.full((len(texts), padded_len), IGNORED_LABEL, dtype=np.int64)
    for index, text in enumerate(texts):
        input_ids[index, : len(text)] = text
        labels[index, : max(len(text) - 1, 0)] = text[1:]
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        labels=torch.from_numpy(labels),
        row_ids=np.asarray(source.row_ids[list(rows)], dtype=np.int64),
        sample_num_tokens=(labels != IGNORED_LABEL).sum(axis=1),
        num_padding_tokens=input_ids.size - sum(len(text) for text in texts),
        dropout_seed=dropout_seed,
        place=place,
    )


def dummy_micro_batch(seq_len: int) -> MicroBatch:
    """Return a micro-batch that costs little and weighs nothing: no sample, every label ignored."""
    shape = (1, min(_LENGTH_MULTIPLE, seq_len))
    nothing = np.zeros(0, dtype=np.int64)
    return MicroBatch(
        input_ids=torch.zeros(shape, dtype=torch.int64),
        labels=torch.full(shape, IGNORED_LABEL, dtype=torch.int64),
        row_ids=nothing,
        sample_num_tokens=nothing,
        num_padding_tokens=0,
    )


def batches_in_order(source: Slice, *, batch_size: int, seq_len: int) -> Iterator[MicroBatch]:
    """Yield every row once, in the order of the slice; the last batch may be smaller."""
    for start in range(0, len(source), batch_size):
        yield collate(source, range(start, min(start + batch_size, len(source))), seq_len=seq_len)
