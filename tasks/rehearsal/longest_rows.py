"""Rows that are as long as they may be, for what is asked before any are at hand, or whatever they are."""

from pathlib import Path

import numpy as np

from tasks.params import Params
from tasks.params.choices import has_labels, has_prompts, read_unit


def write_longest_rows(folder: Path, params: Params, number: int) -> Path:
    """Write the rows of the largest step, all as long as they may be."""
    folder.mkdir()
    size, length = params.dataset.image_size, params.train.seq_len
    arrays = {"row_ids": np.arange(number, dtype=np.int64)}
    if read_unit(params.workload) == "image":
        assert size is not None
        arrays["images"] = np.zeros((number, 3, size, size), dtype=np.uint8)
    else:
        arrays["tokens"] = np.zeros(number * length, dtype=np.int32)
        arrays["offsets"] = np.arange(number + 1, dtype=np.int64) * length
    if has_labels(params.workload):
        arrays["labels"] = np.zeros(number, dtype=np.int64)
    if has_prompts(params.workload):
        arrays["prompts"] = np.ones(number, dtype=np.int64)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder
