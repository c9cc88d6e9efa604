"""A few rows of the first range, for short runs of the real training."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.process.failure import DataError
from training.process.files import digest_json

_PLAIN = ("tokens", "offsets", "row_ids")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of a range, in the layout of data/slices/<start>-<end>."""

    range: str
    """Rows of the data set, `start-end`, end exclusive."""
    arrays: Mapping[str, np.ndarray]
    """What the slice's files hold of these rows, by name: row_ids, and what the workload put beside it."""
    num_steps: int
    """Optimizer steps that they make."""

    @property
    def digest(self) -> str:
        """sha256 of the rows and of where they stand."""
        plain = [self.arrays[name].tolist() for name in _PLAIN if name in self.arrays]
        others = {
            name: hashlib.sha256(array.tobytes()).hexdigest()
            for name, array in self.arrays.items()
            if name not in _PLAIN
        }
        return digest_json([self.range, self.num_steps, *plain, *([others] if others else [])])

    def facts(self) -> dict[str, Any]:
        """Return range, digest and counts."""
        return {
            "range": self.range,
            "num_rows": len(self.arrays["row_ids"]),
            **({"num_tokens": len(self.arrays["tokens"])} if "tokens" in self.arrays else {}),
            "num_steps": self.num_steps,
            "digest": self.digest,
        }

    def write(self, folder: Path) -> None:
        """Write the arrays as a slice."""
        folder.mkdir(parents=True)
        for name, array in self.arrays.items():
            np.save(folder / f"{name}.npy", array)


def take_sample(slices: Path, part: str, *, num_steps: int, batch_size: int) -> Sample:
    """Return the first rows of the range `part`: enough for so many steps, the last of them with a partial batch.

    A shorter range is taken whole. Raises DataError if the slice cannot be read.
    """
    folder = slices / part
    try:
        found = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(folder.glob("*.npy"))}
        num_whole = len(found["row_ids"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: {error}; `dvc repro slice` makes it anew") from None
    wanted = (num_steps - 1) * batch_size + batch_size // 2 + 1
    num_rows = min(wanted, num_whole)
    # Every file has one entry per row, but for where rows begin and end and what lies between.
    ends = {"offsets": num_rows + 1}
    if "offsets" in found:
        ends["tokens"] = int(found["offsets"][num_rows])
    start = int(part.partition("-")[0])
    return Sample(
        range=f"{start}-{start + num_rows}",
        arrays={name: np.array(array[: ends.get(name, num_rows)]) for name, array in found.items()},
        num_steps=-(-num_rows // batch_size),
    )
