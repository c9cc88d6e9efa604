"""A few rows of a range, for short runs of the real training."""

from pathlib import Path

import numpy as np

from tasks.process.failure import DataError


def write_sample(source: Path, folder: Path, *, num_steps: int, batch_size: int) -> tuple[str, int]:
    """Write the first rows of a slice as one: enough for so many steps, the last of them with a partial batch.

    Returns the range that they are, `start-end`, and the steps that they make; a shorter slice is taken whole. Raises
    DataError if it cannot be read.
    """
    try:
        found = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(source.glob("*.npy"))}
        num_rows = min((num_steps - 1) * batch_size + batch_size // 2 + 1, len(found["row_ids"]))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{source}: {error}; `dvc repro slice` makes it anew") from None
    # Every file has one entry per row, but for where rows begin and end and what lies between.
    ends = {"offsets": num_rows + 1}
    if "offsets" in found:
        ends["tokens"] = int(found["offsets"][num_rows])
    folder.mkdir(parents=True)
    for name, array in found.items():
        np.save(folder / f"{name}.npy", array[: ends.get(name, num_rows)])
    start = int(source.name.partition("-")[0])
    return f"{start}-{start + num_rows}", -(-num_rows // batch_size)
