"""The largest micro-batch with which every cell fits into its memory, found by rehearsal before anything runs.

What it is found from is no row, so that one more range trains nothing anew: rows are taken to be as long as they may
be. It is kept by the digest of what it depends on. Where a warm-up then runs out of memory all the same, micro-batches
are halved (tasks/ranks/memory.py).
"""

import bisect
import contextlib
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tasks.machine.gpu_checks import compute_needed_gib
from tasks.machine.host_checks import GIB_PER_RANK
from tasks.machine.host_facts import read_free_memory_bytes
from tasks.machine.usable_gpus import parse_capability
from tasks.measuring.versions import list_versions
from tasks.params import Params
from tasks.params.train import AUTO, NOT_CONTENT
from tasks.process.failure import ConfigurationError, ResourceError
from tasks.ranks.cell_ranks import choose_device, make_ranks_config
from tasks.records.manifests import BaseModelManifest, MachineFile
from tasks.rehearsal.cards import GIB
from tasks.rehearsal.longest_rows import write_longest_rows
from training.config import SegmentConfig, TrainingConfig
from training.process.files import digest_json, write_json

_log = logging.getLogger(__name__)

_STORE = Path(".work/micro_batches")
_SHARE_OF_HOST = 0.6
"""Of the host's free memory, all ranks together: what a CPU's ranks take beside torch's tensors is not rehearsed."""


def settle_micro_batch(params: Params, *, machine: MachineFile, base_model: Path) -> Params:
    """Return the comparison with a number for `train.micro_batch_size: auto`, one for all cells; others as they are.

    Raises ResourceError where a cell does not fit with one sample, ConfigurationError where nothing can be told.
    """
    if params.train.micro_batch_size != AUTO:
        return params
    key = digest_json(
        {
            "cells": {cell: spread.model_dump() for cell, spread in params.cells.items()},
            "train": params.train.model_dump(exclude=set(NOT_CONTENT)),
            "workload": params.workload,
            "image_size": params.dataset.image_size,
            "base_model": BaseModelManifest.read(base_model).digest,
            "versions": list_versions(),
            "machine": machine.digest,
        }
    )
    file, size = _STORE / f"{key}.json", 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        size = int(json.loads(file.read_bytes())["micro_batch_size"])
    if size < 1:
        size = _find_on_machine(params, machine=machine, base_model=base_model)
        _STORE.mkdir(parents=True, exist_ok=True)
        write_json(file, {"micro_batch_size": size})
    _log.info("train.micro_batch_size: auto: %d, the largest with which every cell fits", size)
    return replace_micro_batch(params, size)


def replace_micro_batch(params: Params, size: int) -> Params:
    """Return the comparison with micro-batches of so many samples."""
    return params.model_copy(update={"train": params.train.model_copy(update={"micro_batch_size": size})})


def find_largest(
    params: Params,
    configs: Mapping[str, TrainingConfig],
    rooms: Mapping[str, float],
    *,
    capability: tuple[int, int] | None,
    leaves_out: bool = False,
) -> int:
    """Return the largest size with which every cell fits; `rooms`: cell -> GiB for each rank.

    `capability`: of the GPU, None on the CPU; `leaves_out`: whether cells that do not fit at all, or cannot be told of,
    have no say. Raises ResourceError and ConfigurationError as settle_micro_batch does.
    """
    from training.rehearsal.rehearsed_step import rehearse_largest_rank

    def fits(config: TrainingConfig, size: int, room: float) -> bool:
        # What waits on the host cannot be rehearsed; without that a step takes more of the card.
        options = {name: value for name, value in config.options.items() if name != "offload"}
        changed = replace(config, micro_batch_size=size, options=options)
        most = rehearse_largest_rank(changed, capability=capability).total_bytes / GIB
        return (most + GIB_PER_RANK if capability is None else compute_needed_gib(most)) <= room

    shares = [params.train.global_batch_size // params.count_shares(cell) for cell in params.cells]
    sizes = [size for size in range(1, min(shares) + 1) if all(share % size == 0 for share in shares)]
    for cell, config in configs.items():
        try:
            # More samples never take less: what does not fit here is none for the cells that follow.
            number = bisect.bisect_left(sizes, True, key=lambda size: not fits(config, size, rooms[cell]))
        except (ValueError, RuntimeError, NotImplementedError) as error:
            if leaves_out:
                continue
            reason = " ".join(str(error).split())[:200]
            raise ConfigurationError(
                f"train.micro_batch_size: got auto, and {cell} cannot be rehearsed ({reason}); allowed: a number"
            ) from None
        if number:
            sizes = sizes[:number]
        elif not leaves_out:
            raise ResourceError(
                f"train.micro_batch_size: auto: cells.{cell} does not fit into {rooms[cell]:.1f} GiB per rank with one "
                "sample at a time; needed: activation_checkpointing: layers, another strategy, or more memory"
            )
    return sizes[-1]


def _find_on_machine(params: Params, *, machine: MachineFile, base_model: Path) -> int:
    capability = parse_capability(machine.gpus[0]) if machine.num_gpus else None
    if machine.num_gpus and capability is None:
        raise ConfigurationError(
            "train.micro_batch_size: got auto, and the driver does not tell the GPU's compute capability; allowed: "
            "a number"
        )
    configs, rooms = dict[str, TrainingConfig](), dict[str, float]()
    with tempfile.TemporaryDirectory() as scratch:
        number = params.train.global_batch_size
        rows = write_longest_rows(Path(scratch) / "rows", params, number)
        segment = SegmentConfig(range=f"0-{number}", epoch=1, slice_dir=rows, fingerprint="")
        for cell, spread in params.cells.items():
            device = choose_device(cell, params, machine)
            configs[cell] = make_ranks_config(
                cell, params, device=device, base_model=base_model, work=Path(scratch), segments=[segment]
            )
            rooms[cell] = _SHARE_OF_HOST * read_free_memory_bytes()[0] / GIB / spread.ranks_per_node
            if device == "cuda":
                ranks_per_gpu = -(-spread.ranks_per_node // machine.num_gpus)
                sizes = [gpu.memory_gib for gpu in machine.gpus[: spread.ranks_per_node]]
                known = [size / ranks_per_gpu for size in sizes if size is not None]
                rooms[cell] = min(known, default=rooms[cell])
        return find_largest(params, configs, rooms, capability=capability)
