"""Rows on disk, what a workload has to say of them, and micro-batches of them in memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from training.process.failure import BadCheckpointError

IGNORED_LABEL = -100
"""The label of a position that predicts nothing; cross_entropy leaves it out."""

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class Slice:
    """Rows of tokens, each to be predicted from those before it; memory-mapped: nothing is read before it is used."""

    tokens: np.ndarray
    """(num_tokens,) int32: all rows, one after another."""
    offsets: np.ndarray
    """(num_rows + 1,) int64: row i is tokens[offsets[i]:offsets[i + 1]]."""
    row_ids: np.ndarray
    """(num_rows,) int64: position of each row in the data set."""
    num_given: np.ndarray | None = None
    """(num_rows,) int64: how many tokens at the start of each row are given and not learned; None: 1 of every row."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return the tokens of every row after cutting to `seq_len`: (num_rows,) int64."""
        return np.minimum(np.diff(self.offsets), seq_len)

    def row(self, index: int, seq_len: int) -> np.ndarray:
        """Return the first `seq_len` tokens of a row: (length,) int32."""
        start, end = self.offsets[index], self.offsets[index + 1]
        return self.tokens[start : min(end, start + seq_len)]

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return the tokens of every row that have one before them: (num_rows,) int64."""
        return count_label_tokens(self.lengths(seq_len))

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return those of them that are learned: (num_rows,) int64; the same where none but the first is given."""
        given = 1 if self.num_given is None else self.num_given
        return count_label_tokens(self.lengths(seq_len), given)

    def collate(self, rows: Sequence[int], *, seq_len: int, is_packed: bool = False) -> "MicroBatch":
        """Return the rows as one micro-batch.

        Each row is a sequence, all as long as the longest rounded up to 8, at most `seq_len`. Packed they are one
        sequence together, itself rounded up to 8 unless its last row would become longer than `seq_len`.
        """
        texts = [self.row(index, seq_len) for index in rows]
        lengths = [len(text) for text in texts]
        given = [1] * len(texts) if self.num_given is None else self.num_given[list(rows)].tolist()
        if is_packed:
            ends = np.cumsum(lengths, dtype=np.int64)
            padding = _round_up(max(int(ends[-1]), 1)) - int(ends[-1])
            if lengths[-1] + padding > seq_len:
                padding = 0
            shape, starts = (1, int(ends[-1]) + padding), ends - lengths
        else:
            padded_len = compute_padded_length(lengths, seq_len)
            shape, starts = (len(texts), padded_len), np.arange(len(texts)) * padded_len
        # Any valid id pads: attention is causal and the padding comes last, so no real position ever sees it.
        input_ids = np.zeros(shape, dtype=np.int64)
        labels = np.full(shape, IGNORED_LABEL, dtype=np.int64)
        flat_ids, flat_labels = input_ids.reshape(-1), labels.reshape(-1)
        for start, text, first in zip(starts.tolist(), texts, given, strict=True):
            flat_ids[start : start + len(text)] = text
            flat_labels[start + first - 1 : start + max(len(text), first) - 1] = text[first:]
        of_rows = np.array(lengths, dtype=np.int64)
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            labels=torch.from_numpy(labels),
            label_places=torch.from_numpy(np.flatnonzero(flat_labels != IGNORED_LABEL)),
            row_ids=np.asarray(self.row_ids[list(rows)], dtype=np.int64),
            sample_num_tokens=count_label_tokens(of_rows),
            sample_num_targets=count_label_tokens(of_rows, np.array(given, dtype=np.int64)),
            num_padding_tokens=input_ids.size - sum(lengths),
            documents=make_documents(starts, shape[1]) if is_packed else None,
        )

    def make_dummy_micro_batch(self, seq_len: int) -> "MicroBatch":
        """Return a micro-batch that costs little and weighs nothing."""
        return make_dummy_micro_batch(seq_len)


def count_label_tokens(lengths: np.ndarray, given: np.ndarray | int = 1) -> np.ndarray:
    """Return the label tokens of rows of these lengths: all but those that are given, by default each row's first."""
    return np.maximum(lengths - given, 0)


@dataclass(frozen=True)
class Documents:
    """The rows of a packed sequence. The padding at its end, fewer than 8 positions, belongs to the last one; of
    texts that are classified, to a document of its own."""

    lengths: tuple[int, ...]
    """Positions of each."""
    longest: int
    """Positions of each at most."""
    boundaries: Tensor
    """(num_documents + 1,) int32: where each begins, and the length of the sequence."""
    position_ids: Tensor
    """(1, padded_len) int64: the place of each position in its row, from 0."""


@dataclass(frozen=True)
class MicroBatch:
    """What one rank puts through the model in one forward pass."""

    input_ids: Tensor
    """What goes in, the rows first. Tokens: (num_samples, padded_len) int64, padded on the right; packed:
    (1, padded_len), one row after another."""
    labels: Tensor
    """int64, IGNORED_LABEL where there is none. Of the same shape: the token after each position; or one per row."""
    label_places: Tensor
    """(num_targets,) int64: where `labels`, flattened, has a label."""
    row_ids: np.ndarray
    """(num_samples,) int64: position of each row in the data set; empty for a dummy."""
    sample_num_tokens: np.ndarray
    """(num_samples,) int64: what each row counts in a throughput; empty for a dummy."""
    sample_num_targets: np.ndarray
    """(num_samples,) int64: what each row weighs in the loss: its labels; empty for a dummy."""
    num_padding_tokens: int
    """Positions that hold padding; 0 for a dummy."""
    dropout_seed: int = 0
    """Seed of dropout in this micro-batch: a function of the step and the micro-batch, never of the rank."""
    place: int | None = None
    """Which of the step's micro-batches it is, from 0; None for a dummy and outside of steps."""
    documents: "Documents | None" = None
    """Where in the one sequence each row is; None: every row is a sequence of its own."""
    attention_mask: Tensor | None = None
    """(num_samples, padded_len) int64: 0 on padding; None where none is needed, or nothing is padded."""

    @property
    def num_samples(self) -> int:
        """Rows in it; 0 for a dummy."""
        return len(self.row_ids)

    @property
    def num_tokens(self) -> int:
        """What it counts in a throughput."""
        return int(self.sample_num_tokens.sum())

    @property
    def num_targets(self) -> int:
        """Labels in it."""
        return int(self.sample_num_targets.sum())

    @property
    def num_positions(self) -> int:
        """Positions that the model computes, padding included; one per row where rows are no sequences."""
        return self.input_ids.numel() if self.input_ids.ndim == 2 else len(self.input_ids)

    def to(self, device: torch.device) -> "MicroBatch":
        """Return it on the device; from pinned memory the copy runs beside the host."""
        if device.type == "cpu":
            return self
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "MicroBatch":
        """Return it in page-locked host memory."""
        return self.map_tensors(Tensor.pin_memory)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "MicroBatch":
        """Return it with each of its tensors changed."""
        documents = self.documents
        if documents is not None:
            documents = replace(
                documents, position_ids=change(documents.position_ids), boundaries=change(documents.boundaries)
            )
        return replace(
            self,
            input_ids=change(self.input_ids),
            labels=change(self.labels),
            label_places=change(self.label_places),
            documents=documents,
            attention_mask=None if self.attention_mask is None else change(self.attention_mask),
        )


def opened_arrays(folder: Path, *names: str) -> list[np.ndarray]:
    """Return NAME.npy of a folder for each name, memory-mapped; BadCheckpointError if one is no plain array."""
    try:
        # A plain view of the mapping: slicing np.memmap itself is several times slower.
        return [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in names]
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise BadCheckpointError(f"{folder}: not loadable: {error}; the slice stage makes it anew") from None


def open_slice(folder: Path) -> Slice:
    """Return the slice of a folder with tokens.npy, offsets.npy and row_ids.npy.

    Raises ValueError if the three do not belong together, BadCheckpointError if one is no plain array.
    """
    tokens, offsets, row_ids = opened_arrays(folder, "tokens", "offsets", "row_ids")
    if len(row_ids) == 0:
        raise ValueError(f"{folder}: got 0 rows; allowed: at least 1")
    if len(offsets) != len(row_ids) + 1 or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError(
            f"{folder}: {len(row_ids)} row ids, {len(offsets)} offsets up to {offsets[-1]} and {len(tokens)} tokens do "
            "not belong together; the slice stage makes them anew"
        )
    return Slice(tokens=tokens, offsets=offsets, row_ids=row_ids)


def compute_padded_length(lengths: Sequence[int], seq_len: int) -> int:
    """Return how long rows of these lengths are padded: as the longest, rounded up to 8, at most `seq_len`."""
    return min(_round_up(max([1, *lengths])), seq_len)


def _round_up(length: int) -> int:
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def make_documents(starts: np.ndarray, length: int) -> Documents:
    """Return the documents that begin there in a sequence of that length."""
    # A row without a token is no document.
    boundaries = np.unique(np.append(starts, length))
    lengths = np.diff(boundaries)
    position_ids = np.arange(length) - np.repeat(boundaries[:-1], lengths)
    return Documents(
        lengths=tuple(lengths.tolist()),
        longest=int(lengths.max()),
        boundaries=torch.from_numpy(boundaries.astype(np.int32)),
        position_ids=torch.from_numpy(position_ids)[None],
    )


def make_dummy_micro_batch(seq_len: int) -> MicroBatch:
    """Return a micro-batch that costs little and weighs nothing: no sample, every label ignored."""
    input_ids = torch.zeros((1, min(_LENGTH_MULTIPLE, seq_len)), dtype=torch.int64)
    return make_weightless(input_ids, torch.full_like(input_ids, IGNORED_LABEL))


def make_weightless(input_ids: Tensor, labels: Tensor) -> MicroBatch:
    """Return a micro-batch of what is no sample, whose labels are all ignored."""
    nothing = np.zeros(0, dtype=np.int64)
    return MicroBatch(
        input_ids=input_ids, labels=labels, label_places=torch.from_numpy(nothing), row_ids=nothing,
        sample_num_tokens=nothing, sample_num_targets=nothing, num_padding_tokens=0,
    )  # fmt: skip


def prefetch_micro_batches(
    make: Callable[[int], list[MicroBatch]],
    steps: range,
    device: torch.device,
    *,
    on_wait: Callable[[int], None] = lambda _: None,
    on_ahead: Callable[[Future[list[MicroBatch]]], None] = lambda _: None,
) -> Iterator[tuple[int, list[MicroBatch], float]]:
    """Yield (step, its micro-batches on the device, seconds waited for them) for every step.

    `make` runs in one background thread, one step ahead. For CUDA it hands over pinned memory, so that the copy to the
    device runs beside the host. `on_wait` is told each step before it is waited for, `on_ahead` what will be the
    micro-batches of each further step when they are begun.
    """

    def make_ready(step: int) -> list[MicroBatch]:
        micro_batches = make(step)
        return [part.pin_memory() for part in micro_batches] if device.type == "cuda" else micro_batches

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as thread:
        ahead = thread.submit(make_ready, steps.start) if steps else None
        for step in steps:
            assert ahead is not None
            on_wait(step)
            started = time.perf_counter()
            micro_batches = ahead.result()
            data_wait_seconds = time.perf_counter() - started
            if step + 1 in steps:
                ahead = thread.submit(make_ready, step + 1)
                on_ahead(ahead)
            yield step, [part.to(device) for part in micro_batches], data_wait_seconds


class Rows(Protocol):
    """The rows of one range, as a workload opens them: what they weigh, and micro-batches of them."""

    @property
    def row_ids(self) -> np.ndarray:
        """(num_rows,) int64: position of each row in the data set."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return how long each row is, as a sequence of at most `seq_len`: (num_rows,) int64."""

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return what each row counts in a throughput, in the workload's UNIT: (num_rows,) int64."""

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return what each row weighs in the loss: (num_rows,) int64."""

    def collate(self, rows: Sequence[int], *, seq_len: int, is_packed: bool = False) -> MicroBatch:
        """Return the rows as one micro-batch."""

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return a micro-batch that costs little and weighs nothing."""
