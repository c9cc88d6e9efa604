"""The cores next to a rank's GPU: what the host does for it, and the memory that it does it in, is to be there.

torchrun's own `--numa-binding` follows the same rule, but needs the program numactl and ends a rank where the kernel
does not tell.
"""

import os
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch

_ROOT = Path("/")
_LOADER_THREADS = 1
"""Of a rank, beside those that compute."""


class NearbyCores(NamedTuple):
    """What is next to a GPU on a machine of several NUMA nodes."""

    node: int
    """The GPU's NUMA node."""
    cores: frozenset[int]
    """Those of its cores that this process may use."""


def use_nearby_cores(device: torch.device, *, threads_per_rank: int, root: Path = _ROOT) -> None:
    """Have this process run on the cores next to its GPU, where the machine has others, too, and room for it there.

    So do the ranks of all its GPUs or none, however many a cell has: else one rank would be slower than another.
    """
    if device.type != "cuda":
        return
    everyones = [find_nearby_cores(torch.device("cuda", one), root=root) for one in range(torch.cuda.device_count())]
    if have_room(everyones, num_threads=threads_per_rank + _LOADER_THREADS):
        bind_threads(everyones[device.index].cores)


def have_room(everyones: Sequence[NearbyCores | None], *, num_threads: int) -> TypeGuard[Sequence[NearbyCores]]:
    """Return whether next to each of these GPUs are as many cores as it and those beside it have threads."""
    num_beside = Counter(one.node for one in everyones if one is not None)
    return all(one is not None and num_threads * num_beside[one.node] <= len(one.cores) for one in everyones)


def bind_threads(cores: Set[int]) -> None:
    """Have all threads of this process, and those that they start, run on these cores alone."""
    for thread in sorted(int(path.name) for path in Path("/proc/self/task").iterdir()):
        try:
            os.sched_setaffinity(thread, cores)
        except OSError:  # it has ended meanwhile
            continue


def find_nearby_cores(device: torch.device, *, root: Path = _ROOT) -> NearbyCores | None:
    """Return what is next to a GPU; None on the CPU, with one NUMA node, without a core there, or none told."""
    if device.type != "cuda" or not hasattr(os, "sched_setaffinity"):
        return None
    card: Any = torch.cuda.get_device_properties(device)
    place = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    return read_nearby_cores(root / "sys/bus/pci/devices" / place, nodes=root / "sys/devices/system/node")


def read_nearby_cores(card: Path, *, nodes: Path) -> NearbyCores | None:
    """Return what the kernel says of a card, and of the NUMA nodes, in these two folders."""
    if len(list(nodes.glob("node[0-9]*"))) < 2:
        return None
    try:
        node = int((card / "numa_node").read_text())
        cores = _parse_list((nodes / f"node{node}" / "cpulist").read_text())
    except (OSError, ValueError):
        return None
    allowed = cores & os.sched_getaffinity(0)
    return NearbyCores(node, frozenset(allowed)) if allowed else None


def _parse_list(text: str) -> set[int]:
    """Return the numbers of a list of the kernel's, such as 0-3,8-11."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}
