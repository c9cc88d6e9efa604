"""Rows of images on disk, decoded and resized once for all epochs, and micro-batches of them in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from training.data.augmentation import Augmentation
from training.data.batches import IGNORED_LABEL, MicroBatch, opened_arrays


@dataclass(frozen=True)
class ImageRows:
    """The rows of one range, memory-mapped: nothing is read before it is used."""

    images: np.ndarray
    """(num_rows, 3, size, size) uint8."""
    labels: np.ndarray
    """(num_rows,) int64: the class of each row, by its place among the sorted names of all classes."""
    row_ids: np.ndarray
    """(num_rows,) int64: position of each row in the data set."""
    augmentation: Augmentation | None = None
    """What is done to the images; None: nothing, as in every evaluation."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return the same for every row, since all are as large: (num_rows,) int64; `seq_len` has no meaning here.

        It is how many patches of 8 x 8 pixels an image has, so that a batch of many images is as large as of tokens.
        """
        return np.full(len(self), max(1, self.images[0].size // (3 * 64)), dtype=np.int64)

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return 1 for every row, which is an image: (num_rows,) int64."""
        return np.ones(len(self), dtype=np.int64)

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return 1 for every row, which has one label: (num_rows,) int64."""
        return np.ones(len(self), dtype=np.int64)

    def collate(self, rows: Sequence[int], *, seq_len: int, is_packed: bool = False) -> MicroBatch:
        """Return the rows as one micro-batch."""
        chosen = list(rows)
        images, row_ids = np.array(self.images[chosen]), np.array(self.row_ids[chosen])
        if self.augmentation is not None:
            images = self.augmentation.apply(images, row_ids.tolist())
        ones = np.ones(len(chosen), dtype=np.int64)
        return MicroBatch(
            input_ids=torch.from_numpy(images),
            labels=torch.from_numpy(np.array(self.labels[chosen])),
            label_places=torch.arange(len(chosen)),
            row_ids=row_ids,
            sample_num_tokens=ones,
            sample_num_targets=ones,
            num_padding_tokens=0,
        )

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return one black image that weighs nothing."""
        return make_blank_micro_batch(self.images.shape[-1])


def make_blank_micro_batch(size: int) -> MicroBatch:
    """Return a black image of so many pixels a side, whose label is ignored and which is no sample."""
    nothing = np.zeros(0, dtype=np.int64)
    return MicroBatch(
        input_ids=torch.zeros((1, 3, size, size), dtype=torch.uint8),
        labels=torch.full((1,), IGNORED_LABEL),
        label_places=torch.from_numpy(nothing),
        row_ids=nothing,
        sample_num_tokens=nothing,
        sample_num_targets=nothing,
        num_padding_tokens=0,
    )


def open_images(folder: Path) -> ImageRows:
    """Return the rows of a folder with images.npy, labels.npy and row_ids.npy.

    Raises ValueError if the three do not belong together, BadCheckpointError if one is no plain array.
    """
    images, labels, row_ids = opened_arrays(folder, "images", "labels", "row_ids")
    if len(row_ids) == 0:
        raise ValueError(f"{folder}: got 0 rows; allowed: at least 1")
    if images.ndim != 4 or images.dtype != np.uint8 or not len(images) == len(labels) == len(row_ids):
        raise ValueError(
            f"{folder}: {images.dtype} images {images.shape}, {len(labels)} labels and {len(row_ids)} row ids do not "
            "belong together; the slice stage makes them anew"
        )
    return ImageRows(images=images, labels=labels, row_ids=row_ids)
