"""A few rows of the first range, for short runs of the real training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.stage.failure import DataError
from training.files import digest_of_json


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of a range, in the layout of data/slices/<start>-<end>."""

    range: str
    """Rows of the data set, `start-end`, end exclusive."""
    tokens: np.ndarray
    """(num_tokens,) int32: all rows, one after another."""
    offsets: np.ndarray
    """(num_rows + 1,) int64: row i is tokens[offsets[i]:offsets[i + 1]]."""
    row_ids: np.ndarray
    """(num_rows,) int64: position of each row in the data set."""
    num_steps: int
    """Optimizer steps that they make."""

    @property
    def digest(self) -> str:
        """sha256 of the rows and of where they stand."""
        return digest_of_json(
            [self.range, self.num_steps, self.tokens.tolist(), self.offsets.tolist(), self.row_ids.tolist()]
        )

    def facts(self) -> dict[str, Any]:
        """Return range, digest and counts."""
        return {
            "range": self.range,
            "num_rows": len(self.row_ids),
            "num_tokens": len(self.tokens),
            "num_steps": self.num_steps,
            "digest": self.digest,
        }

    def write(self, folder: Path) -> None:
        """Write the arrays as a slice."""
        folder.mkdir(parents=True)
        for name in ("tokens", "offsets", "row_ids"):
            np.save(folder / f"{name}.npy", getattr(self, name))


def take_sample(slices: Path, part: str, *, num_steps: int, batch_size: int) -> Sample:
    """Return the first rows of the range `part`: enough for so many steps, the last of them with a partial batch.

    A shorter range is taken whole. Raises DataError if the slice cannot be read.
    """
    folder = slices / part
    try:
        tokens, offsets, row_ids = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in ("tokens", "offsets", "row_ids")
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: {error}; `dvc repro slice` makes it anew") from None
    wanted = (num_steps - 1) * batch_size + batch_size // 2 + 1
    num_rows = min(wanted, len(row_ids))
    start = int(part.partition("-")[0])
    return Sample(
        range=f"{start}-{start + num_rows}",
        tokens=np.array(tokens[: offsets[num_rows]]),
        offsets=np.array(offsets[: num_rows + 1]),
        row_ids=np.array(row_ids[:num_rows]),
        num_steps=-(-num_rows // batch_size),
    )
