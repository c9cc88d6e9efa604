"""A measurement of emulated devices: the same ranks, blocks and arithmetic as of real ones, with the truth known."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.measuring.session import measure_cells
from tasks.params import Params
from tasks.reporting.measurement import MeasurementFile
from training.emulated_device import EmulatedDevice, write_device
from training.files import digest_of_json, write_json

_NUM_STEPS = 16
_ROW_LENGTH = 8


def emulated_params(
    world_sizes: Sequence[int], *, num_micro_batches: int, measure: Mapping[str, Any] | None = None
) -> Params:
    """Return a comparison of so many emulated devices, the plain process first; see MeasureParams for `measure`.

    `num_micro_batches` are those of a whole step, one sample each.
    """
    cells: dict[str, Any] = {
        f"{size}dev": {"strategy": "single" if size == 1 else "ddp", "world_size": size} for size in world_sizes
    }
    return Params.model_validate(
        {
            "name": "emulated",
            "description": "Layers that sleep and a link that waits: a scaling study of devices that are not there.",
            "model": {"source": "path:device", "name": "emulated"},
            "dataset": {"source": "builtin:docstrings"},
            "ranges": [f"0-{_NUM_STEPS * num_micro_batches}"],
            "heldout": f"{_NUM_STEPS * num_micro_batches}-{_NUM_STEPS * num_micro_batches + 1}",
            "workload": "emulated",
            "train": {
                "epochs": 1,
                "global_batch_size": num_micro_batches,
                "micro_batch_size": 1,
                "learning_rate": 1e-3,
                "seq_len": _ROW_LENGTH,
            },
            "cells": cells,
            "measure": dict(measure or {}),
        }
    )


def measure_device(
    device: EmulatedDevice, params: Params, *, folder: Path, stop: threading.Event, num_devices: int | None = None
) -> MeasurementFile:
    """Measure the comparison on ranks that have such a device each; files go to the new `folder`.

    `num_devices`: of the machine; by default those of the largest cell.
    """
    write_device(folder / "device", device)
    rows = folder / str(params.ranges[0])
    write_rows(rows, num_rows=params.ranges[0].end)
    num_devices = num_devices or max(cell.world_size for cell in params.cells.values())
    machine = {"gpus": [], "num_gpus": 0, "num_cpus": num_devices}
    return measure_cells(
        params, machine=machine, base_model=folder / "device", rows=[rows], work=folder / "ranks", stop=stop
    )


def write_rows(folder: Path, *, num_rows: int) -> None:
    """Write a slice of rows of one length: what they hold is of no matter to a layer that sleeps."""
    folder.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {
        "tokens": np.arange(num_rows * _ROW_LENGTH, dtype=np.int32) % 97,
        "offsets": np.arange(num_rows + 1, dtype=np.int64) * _ROW_LENGTH,
        "row_ids": np.arange(num_rows, dtype=np.int64),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_json(folder / "manifest.json", {"digest": digest_of_json({"num_rows": num_rows, "length": _ROW_LENGTH})})
