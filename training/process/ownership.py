"""What a rank computes on, as the rank itself sees it: its GPU, the cores that it may use, the quota of its group."""

import os
from pathlib import Path
from typing import Any

import torch

_CGROUP = Path("/sys/fs/cgroup")


def collect_device_facts(device: torch.device) -> dict[str, Any]:
    """Return what RankDevice (training/record/segment_facts.py) says; None for what the system does not tell."""
    return {
        "gpu_uuid": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None,
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_quota": _read_cpu_quota(),
    }


def _read_cpu_quota() -> float | None:
    """Return the least quota of this process's control group and those around it, in cores; version 2 alone."""
    try:
        path = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        return None
    quotas = []
    for folder in (_CGROUP / path, *(_CGROUP / path).parents):
        try:
            limit, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if limit != "max":
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)
