"""A measurement of emulated devices: the same ranks, blocks and arithmetic as of real ones, with the truth known."""

import contextlib
import dataclasses
import threading

import numpy as np
from ruamel.yaml import YAML

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
from training.process.files import write_json

_PARAMS = YAML(typ="safe", pure=True).load("""
name: emulated
description: Layers that sleep and a link that waits, a scaling study of devices that are not there.
model: {source: "path:device", name: emulated}
dataset: {source: "builtin:docstrings"}
ranges: [0-64]
heldout: 64-65
# As which the rows are read; what ranks are told is WORKLOAD.
workload: causal_lm
train: {epochs: 1, global_batch_size: 4, micro_batch_size: 1, learning_rate: 1.0e-3, seq_len: 8}
""")


def emulated_params(world_sizes, **measure):
    """Return a comparison of so many emulated devices, the plain process first; see MeasureParams for `measure`.

    A step has four micro-batches of one sample each.
    """
    cells = {f"{size}dev": {"strategy": "single" if size == 1 else "ddp", "world_size": size} for size in world_sizes}
    return Params.model_validate({**_PARAMS, "cells": cells, "measure": measure})


def measure_device(device, params, *, folder, num_devices):
    """Measure the comparison on ranks that have such a device each, on a machine with so many.

    Files go to the new `folder`.
    """
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
        configs=_name_workload(session.configs),
    )
    return measure_cells(session, stop=threading.Event())


@contextlib.contextmanager
def emulated_ranks(params, *, folder, device, stop):
    """Yield the waiting ranks of every cell: with such a device, or with any that a block's variant names.

    Files go to `folder`.
    """
    rows, model_dir = _write_rows(folder, params), write_device(folder / "device of all", device)
    segment = SegmentConfig(range=rows.name, epoch=1, fingerprint="emulated", slice_dir=rows)
    configs = _name_workload(
        {
            cell: make_ranks_config(
                cell, params, device="cpu", base_model=model_dir, work=folder / cell, segments=[segment]
            )
            for cell in params.cells
        }
    )
    launchers = {cell: spread.launcher for cell, spread in params.cells.items()}
    with open_workers(configs, launchers=launchers, stop=stop) as workers:
        yield workers


def _name_workload(configs):
    return {cell: dataclasses.replace(told, workload=WORKLOAD) for cell, told in configs.items()}


def _write_rows(folder, params):
    """Write the first range, of rows of one length: what they hold is of no matter to a layer that sleeps."""
    num_rows, length = params.ranges[0].end, params.train.seq_len
    tokens = np.arange(num_rows * length).reshape(num_rows, length)
    folder = write_rows(folder / str(params.ranges[0]), tokens, vocab_size=97)
    write_json(folder / "manifest.json", {"digest": "rows of one length"})
    return folder
