"""What a training ran with, by value, as its ranks see it: put down once per launch, outside of the timed steps."""

import dataclasses
import os
import platform
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from training.config import TrainingConfig
from training.model.adapter import PACKAGE as ADAPTER_PACKAGE
from training.model.attention_kernels import find_attention_kernel
from training.model.four_bit import PACKAGE as FOUR_BIT_PACKAGE
from training.process.distributed import Ranks
from training.process.files import digest_file
from training.record.environment import collect_environment
from training.strategies import find_options
from training.workloads import find_workload

_RUN_AT_START = ("sitecustomize", "usercustomize")
"""Modules that Python imports by itself, from wherever PYTHONPATH or the installation has them."""


_NOT_WORK = {
    "cell", "strategy", "options", "world_size", "workload", "device", "oversubscribe", "model_dir", "model_name",
    "work_dir", "segments", "heldout_dir", "heldout_digest", "max_check_gib",
}  # fmt: skip
"""Fields of the config that are no part of the section `train`."""


def gather_setting(config: TrainingConfig, ranks: Ranks, model: nn.Module) -> dict[str, Any]:
    """Return, on all ranks, what rank 0 runs with, and under `ranks_differ` what is otherwise on which other rank.

    What Python ran at the start may differ between machines: `run_at_start` has it of each one's first rank, by the
    machine's name, and a rank differs if it ran something else than that one.

    To be called by all ranks, between steps, once the model is built.
    """
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NOT_WORK}
    is_cuda = ranks.device.type == "cuda"
    # What computes this cell's updates beside the packages of every cell.
    packages = [getattr(find_options(config.strategy), "PACKAGE", None)]
    packages += [ADAPTER_PACKAGE, *[FOUR_BIT_PACKAGE] * bool(config.adapter["base"])] if config.adapter else []
    mine = {
        "train": fields,
        "workload": config.workload,
        "model_name": config.model_name,
        "options": dict(config.options),
        "device": torch.cuda.get_device_name(ranks.device) if is_cuda else "cpu",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "numpy": np.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if is_cuda else None,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if is_cuda else None,
        },
        "kernels": {
            "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
            "attention_kernel": find_attention_kernel(
                model,
                ranks.device,
                precision=config.precision,
                is_masked=find_workload(config.workload).HAS_LABELS and not config.packing,
            ),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "searches_anomalies": torch.is_anomaly_enabled(),
            **{f"{name}_attention": is_on() for name, is_on in _ATTENTION_KERNELS.items()},
        },
        "packages": {package: version(package) for package in packages if package is not None},
        # What whoever starts ranks gives them of the cores beside other programs; it changes no number.
        "priority": {
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "policy": os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None,
        },
        "environment": collect_environment(),
        "interpreter": collect_interpreter(),
    } | {
        "run_at_start": collect_run_at_start(), "machine": socket.gethostname()
    }  # fmt: skip
    gathered = ranks.gather_values(mine)
    machines: dict[str, dict[str, str | None]] = {}
    differ = {}
    for rank, item in enumerate(gathered):
        there = machines.setdefault(item.pop("machine"), item["run_at_start"])
        differ[f"rank {rank}"] = _compare_settings({**gathered[0], "run_at_start": there}, item)
    results = {rank: values for rank, values in differ.items() if values}
    return {**gathered[0], "run_at_start": machines, "ranks_differ": results}


_ATTENTION_KERNELS = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "plain": torch.backends.cuda.math_sdp_enabled,
}
"""Kernels of attention that torch may choose from on a GPU."""


def _compare_settings(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return `section.name` -> the other's value where it is not the first's."""
    results: dict[str, Any] = {}
    for section, value in first.items():
        if not isinstance(value, dict):
            results |= {} if other[section] == value else {section: other[section]}
            continue
        for name in sorted({*value, *other[section]}):
            if (theirs := other[section].get(name)) != value.get(name):
                results[f"{section}.{name}"] = theirs
    return results


def collect_interpreter() -> dict[str, Any]:
    """Return `watched_by`, the names of debuggers and profilers.

    To be called from the main thread, which trains: a profiler of another one slows that one.
    """
    results = [name for name, is_on in (("trace", sys.gettrace()), ("profile", sys.getprofile())) if is_on]
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return {"watched_by": (results + [str(tool) for tool in tools if tool])}


def collect_run_at_start() -> dict[str, str | None]:
    """Return the sha256 of each module's file that ran at the start, None for one that is not there."""
    results: dict[str, str | None] = {}
    for name in _RUN_AT_START:
        file = getattr(sys.modules.get(name), "__file__", None)
        try:
            results[name] = None if file is None else digest_file(Path(file))
        except OSError:
            results[name] = "a file that cannot be read"
    return results
