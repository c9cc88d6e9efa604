"""What a machine of several is, for the report: host, processor, GPUs, its way to the others, and its GPUs' energy."""

import contextlib
import socket
from typing import Any

import psutil

from tasks.machine.facts import collect_machine_facts
from tasks.machine.gpus import open_gpus


def collect_node_facts(*, node_rank: int, address: str) -> dict[str, Any]:
    """Return the facts of this machine, which the others reach at that address."""
    kept = collect_machine_facts().model_dump(include={"cpu", "num_cpus", "gpus", "driver", "versions"})
    interface = next(
        (name for name, ways in psutil.net_if_addrs().items() if any(way.address == address for way in ways)), ""
    )
    return {"node_rank": node_rank, "host": socket.gethostname(), "address": address, "interface": interface, **kept}


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
