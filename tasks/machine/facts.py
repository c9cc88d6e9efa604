"""What a machine is: GPUs, driver, CPU and versions; torch is not imported for it."""

import contextlib
import importlib.metadata
import platform
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from tasks.machine.gpu_facts import ask_nvml, open_gpus, read_compute_capability
from tasks.machine.host_facts import list_usable_cpus
from tasks.process.failure import ResourceError
from tasks.records.facts import GpuFacts
from tasks.records.manifests import MachineFile
from training.process.files import digest_json

PACKAGES = ("torch", "torchvision", "transformers", "numpy", "safetensors")
"""Those that compute, or read what is computed with."""


def collect_machine_facts() -> MachineFile:
    """Return GPUs, driver, CPU and versions, and under `digest` the sha256 of them all.

    Raises ResourceError if a GPU that may be used does not answer.
    """
    import pynvml

    with open_gpus() as opened:
        gpus = [
            GpuFacts(
                name=pynvml.nvmlDeviceGetName(handle),
                memory_gib=memory and round(memory.total / 2**30, 1),
                compute_capability=read_compute_capability(handle),
            )
            for handle in opened.handles
            for memory in [ask_nvml("DeviceGetMemoryInfo", handle)]
        ]
    facts = MachineFile(
        digest="",
        gpus=gpus,
        num_gpus=len(gpus),
        driver=opened.driver,
        cpu=_read_cpu_name(),
        num_cpus=len(list_usable_cpus()),
        os=platform.system(),
        architecture=platform.machine(),
        versions={
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in PACKAGES},
        },
    )
    return facts.model_copy(update={"digest": digest_json(facts.content(exclude={"digest"}))})


def _read_cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def collect_node_facts(*, node_rank: int, address: str, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the facts of this machine, which the others reach at that address; `packages`: what else computes."""
    kept = collect_machine_facts().model_dump(include={"cpu", "num_cpus", "gpus", "driver", "versions"})
    kept["versions"] |= {package: _read_version(package) for package in packages}
    interface = next(
        (name for name, ways in psutil.net_if_addrs().items() if any(way.address == address for way in ways)), ""
    )
    return {"node_rank": node_rank, "host": socket.gethostname(), "address": address, "interface": interface, **kept}


def _read_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_gpu_energy_joules() -> float | None:
    """Return the energy that the GPUs have used since their driver was loaded; None where one of them does not tell."""
    import pynvml

    with contextlib.suppress(ResourceError), open_gpus() as opened:
        if opened.handles:
            return sum(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in opened.handles) / 1000
    return None


def compute_energy_since(before: float | None) -> float | None:
    """Return the energy that the GPUs have used since `gpu_energy_joules` said so much."""
    now = read_gpu_energy_joules()
    return None if before is None or now is None else now - before
