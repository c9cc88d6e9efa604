"""Rows of texts on disk, each with its class, and micro-batches of them in memory: padded, or one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.data.batches import (
    IGNORED_LABEL,
    Documents,
    MicroBatch,
    Slice,
    compute_padded_length,
    make_documents,
    make_dummy_micro_batch,
    open_slice,
    opened_arrays,
)

_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as tokens, and the class of each; memory-mapped."""

    texts: Slice
    """The tokens of each, the last of which closes it."""
    labels: np.ndarray
    """(num_rows,) int64: number of the class."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def row_ids(self) -> np.ndarray:
        """(num_rows,) int64: position of each row in the data set."""
        return self.texts.row_ids

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return the tokens of every text after cutting to `seq_len`: (num_rows,) int64."""
        return self.texts.lengths(seq_len)

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return the same: the model reads every token."""
        return self.lengths(seq_len)

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return 1 for every text: it has one class."""
        return np.ones(len(self), dtype=np.int64)

    def row(self, index: int, seq_len: int) -> np.ndarray:
        """Return the tokens of a text: (length,) int32; of a longer one the first, and the one that closes it."""
        text = self.texts.row(index, seq_len)
        end = self.texts.offsets[index + 1] - 1
        return np.append(text[:-1], self.texts.tokens[end]) if len(text) == seq_len else text

    def collate(self, rows: Sequence[int], *, seq_len: int, is_packed: bool = False) -> MicroBatch:
        """Return the texts as one micro-batch, all as long as the longest rounded up to 8, at most `seq_len`.

        Packed they are one sequence, one text after another, and what rounds it up to 8 is a document of its own.
        """
        texts = [self.row(index, seq_len) for index in rows]
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        mask: Tensor | None = None
        documents: Documents | None = None
        if is_packed:
            input_ids, documents = pack_texts(texts)
        else:
            padded_len = compute_padded_length(lengths.tolist(), seq_len)
            input_ids = np.zeros((len(texts), padded_len), dtype=np.int64)
            for place_in_batch, text in enumerate(texts):
                input_ids[place_in_batch, : len(text)] = text
            mask = torch.from_numpy((np.arange(padded_len) < lengths[:, None]).astype(np.int64))
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            attention_mask=mask,
            documents=documents,
            labels=torch.from_numpy(np.array(self.labels[list(rows)], dtype=np.int64)),
            label_places=torch.arange(len(texts)),
            row_ids=np.asarray(self.row_ids[list(rows)], dtype=np.int64),
            sample_num_tokens=lengths,
            sample_num_targets=np.ones(len(texts), dtype=np.int64),
            num_padding_tokens=input_ids.size - int(lengths.sum()),
        )

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return a micro-batch that costs little and weighs nothing."""
        return make_dummy_text(seq_len)


def pack_texts(texts: Sequence[np.ndarray]) -> tuple[np.ndarray, Documents]:
    """Return texts, none of them empty, one after another: (1, length) int64, and where each is."""
    num_tokens = sum(map(len, texts))
    input_ids = np.zeros((1, -(-num_tokens // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE), dtype=np.int64)
    input_ids[0, :num_tokens] = np.concatenate(texts)
    starts = np.cumsum([0, *map(len, texts)])
    # Padding would be seen by the last text if it were its own.
    documents = make_documents(starts[starts < input_ids.size], input_ids.size)
    assert documents.lengths[: len(texts)] == tuple(map(len, texts)), "a text without a token"
    return input_ids, documents


def list_texts(texts: Sequence[np.ndarray]) -> LabelledTexts:
    """Return these texts as rows, each of the first class."""
    places = np.arange(len(texts), dtype=np.int64)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    rows = Slice(tokens=np.concatenate(texts).astype(np.int32), offsets=offsets, row_ids=places)
    return LabelledTexts(texts=rows, labels=np.zeros_like(places))


def make_dummy_text(seq_len: int) -> MicroBatch:
    """Return a micro-batch that costs little and weighs nothing: no sample, its one label ignored."""
    dummy = make_dummy_micro_batch(seq_len)
    return replace(dummy, labels=torch.full((1,), IGNORED_LABEL), attention_mask=torch.ones_like(dummy.input_ids))


def open_labelled_texts(folder: Path) -> LabelledTexts:
    """Return the rows of a folder that has labels.npy beside the tokens; raises as batches.open_slice does."""
    texts = open_slice(folder)
    (labels,) = opened_arrays(folder, "labels")
    if len(labels) != len(texts):
        raise ValueError(f"{folder}: {len(labels)} labels and {len(texts)} rows; the slice stage makes them anew")
    return LabelledTexts(texts=texts, labels=labels)
