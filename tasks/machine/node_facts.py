"""What a machine of several is, for the report: host, processor, GPUs, its way to the others, and its GPUs' energy."""

import contextlib
import importlib.metadata
import socket
from collections.abc import Iterable
from typing import Any

import psutil

from tasks.machine.facts import collect_machine_facts
from tasks.machine.gpus import open_gpus


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

    with contextlib.suppress(pynvml.NVMLError), open_gpus() as opened:
        if opened.handles:
            return sum(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in opened.handles) / 1000
    return None


def compute_energy_since(before: float | None) -> float | None:
    """Return the energy that the GPUs have used since `gpu_energy_joules` said so much."""
    now = read_gpu_energy_joules()
    return None if before is None or now is None else now - before
