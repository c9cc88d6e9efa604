"""What a machine is: GPUs, driver, CPU and versions; torch is not imported for it."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from tasks.machine.gpu_facts import read_compute_capability
from tasks.machine.gpus import open_gpus
from training.process.files import digest_json

_PACKAGES = ("torch", "torchvision", "transformers", "numpy", "safetensors")


def collect_machine_facts() -> dict[str, Any]:
    """Return GPUs, driver, CPU and versions, and under `digest` the sha256 of them all."""
    gpus, driver = _collect_gpu_facts()
    facts: dict[str, Any] = {
        "gpus": gpus,
        "num_gpus": len(gpus),
        "driver": driver,
        "cpu": _read_cpu_name(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "os": platform.system(),
        "architecture": platform.machine(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    return {"digest": digest_json(facts), **facts}


def _collect_gpu_facts() -> tuple[list[dict[str, Any]], str | None]:
    """Return the NVIDIA GPUs that a process started from here may use, and the driver's version."""
    import pynvml

    with open_gpus() as opened:
        facts = [
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "memory_gib": round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
                "compute_capability": read_compute_capability(handle),
            }
            for handle in opened.handles
        ]
        return facts, opened.driver


def _read_cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
