"""Images mirrored and shifted at random: a function of the seed, the epoch and the row, whoever trains on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Augmentation:
    """What is done to the images of one epoch."""

    kind: str
    """flip: every other one is mirrored; flip_shift: and each is shifted by up to an eighth of its side."""
    seed: int
    epoch: int
    """From 1."""

    def sample_transforms(self, row_ids: Sequence[int], *, size: int) -> list[tuple[bool, int, int]]:
        """Return for each row whether it is mirrored, and by how many pixels it is then shifted down and right."""
        largest = size // 8 if self.kind == "flip_shift" else 0
        results = []
        for row_id in row_ids:
            random = np.random.default_rng([self.seed, self.epoch, row_id])
            is_mirrored = bool(random.integers(2))
            down, right = random.integers(-largest, largest, endpoint=True, size=2).tolist()
            results.append((is_mirrored, down, right))
        return results

    def apply(self, images: np.ndarray, row_ids: Sequence[int]) -> np.ndarray:
        """Return these rows' images, (num_rows, 3, size, size) uint8, as the epoch has them; what moves in is black."""
        size = images.shape[-1]
        changed = np.zeros_like(images)
        for target, image, (is_mirrored, down, right) in zip(
            changed, images, self.sample_transforms(row_ids, size=size), strict=True
        ):
            seen = image[:, :, ::-1] if is_mirrored else image
            (to_rows, from_rows), (to_columns, from_columns) = (
                _compute_overlap(down, size),
                _compute_overlap(right, size),
            )
            target[:, to_rows, to_columns] = seen[:, from_rows, from_columns]
        return changed


def _compute_overlap(shift: int, size: int) -> tuple[slice, slice]:
    """Return where in the shifted image something of the old one is, and where in the old one that was."""
    return slice(max(shift, 0), size + min(shift, 0)), slice(max(-shift, 0), size + min(-shift, 0))
