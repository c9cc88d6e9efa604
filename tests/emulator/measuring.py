"""A measurement of emulated devices: the same ranks, blocks and arithmetic as of real ones, with the truth known."""

import contextlib
import dataclasses
import threading

import numpy as np

from benchmarks.throughput.rows import write_rows
from tasks.machine.facts import collect_machine_facts
from tasks.measuring.planning import plan_session
from tasks.measuring.session import measure_cells
from tasks.measuring.workers import open_workers
from tasks.params import Params
from tasks.ranks.cell_ranks import make_ranks_config
from tests.emulator import WORKLOAD
from tests.emulator.device import write_device
from training.config import SegmentConfig
from training.process.files import digest_json, write_json

_NUM_STEPS = 16
_ROW_LENGTH = 8


def emulated_params(world_sizes, *, num_micro_batches, measure=None):
    """Return a comparison of so many emulated devices, the plain process first; see MeasureParams for `measure`.

    `num_micro_batches` are those of a whole step, one sample each.
    """
    cells = {f"{size}dev": {"strategy": "single" if size == 1 else "ddp", "world_size": size} for size in world_sizes}
    return Params.model_validate(
        {
            "name": "emulated",
            "description": "Layers that sleep and a link that waits: a scaling study of devices that are not there.",
            "model": {"source": "path:device", "name": "emulated"},
            "dataset": {"source": "builtin:docstrings"},
            "ranges": [f"0-{_NUM_STEPS * num_micro_batches}"],
            "heldout": f"{_NUM_STEPS * num_micro_batches}-{_NUM_STEPS * num_micro_batches + 1}",
            # As which the rows are read; what ranks are told is WORKLOAD.
            "workload": "causal_lm",
            "train": {
                "epochs": 1,
                "global_batch_size": num_micro_batches,
                "micro_batch_size": 1,
                "learning_rate": 1e-3,
                "seq_len": _ROW_LENGTH,
            },
            "cells": cells,
            # They sleep, which what others use of the CPUs hardly makes any longer.
            "measure": {"others_share": 1, **(measure or {})},
        }
    )


def measure_device(device, params, *, folder, stop, num_devices=None):
    """Measure the comparison on ranks that have such a device each; files go to the new `folder`.

    `num_devices`: of the machine; by default those of the largest cell.
    """
    num_devices = num_devices or max(cell.world_size for cell in params.cells.values())
    session = plan_session(
        params,
        machine=collect_machine_facts().model_copy(update={"gpus": [], "num_gpus": 0, "num_cpus": num_devices}),
        base_model=write_device(folder / "device", device),
        rows=[_write_rows(folder, params)],
        work=folder / "ranks",
    )
    session = dataclasses.replace(
        session,
        comparison=dataclasses.replace(session.comparison, has_copy=True),
        configs={cell: dataclasses.replace(told, workload=WORKLOAD) for cell, told in session.configs.items()},
    )
    return measure_cells(session, stop=stop)


@contextlib.contextmanager
def emulated_ranks(params, *, folder, device, stop=None):
    """Yield the waiting ranks of every cell: with such a device, or with any that a block's variant names.

    Files go to `folder`.
    """
    rows, model_dir = _write_rows(folder, params), write_device(folder / "device of all", device)
    segment = SegmentConfig(range=rows.name, epoch=1, fingerprint="emulated", slice_dir=rows)
    told = {
        cell: make_ranks_config(
            cell, params, device="cpu", base_model=model_dir, work=folder / cell, segments=[segment]
        )
        for cell in params.cells
    }
    configs = {cell: dataclasses.replace(one, workload=WORKLOAD) for cell, one in told.items()}
    launchers = {cell: spread.launcher for cell, spread in params.cells.items()}
    with open_workers(configs, launchers=launchers, stop=stop or threading.Event()) as workers:
        yield workers


def _write_rows(folder, params):
    """Write the first range, of rows of one length: what they hold is of no matter to a layer that sleeps."""
    num_rows = params.ranges[0].end
    tokens = np.arange(num_rows * _ROW_LENGTH).reshape(num_rows, _ROW_LENGTH)
    folder = write_rows(folder / str(params.ranges[0]), tokens, vocab_size=97)
    write_json(folder / "manifest.json", {"digest": digest_json({"num_rows": num_rows, "length": _ROW_LENGTH})})
    return folder
