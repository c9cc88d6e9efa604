"""What the ranks exchange: counted by torch's process groups, and at sampled steps read from its flight recorder."""

import json
import math
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

_BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1}
_IS_AVAILABLE = dist.is_available()
_recorder: Any = _distributed_c10d
"""The recorder has no public name yet."""


def count_collectives() -> dict[str, int]:
    """Return how many collectives each process group has begun, whoever called them; empty without any group."""
    counts: dict[str, int] = {}
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map) if _IS_AVAILABLE else []
    for group in groups:
        try:
            counts[str(group.group_name)] = int(group._get_sequence_number_for_group())
        except RuntimeError:
            # Not every backend counts.
            continue
    return counts


def read_traffic(before: dict[str, int], now: dict[str, int]) -> dict[str, list[int]] | None:
    """Return kind -> [number, bytes given] of the collectives between two counts; None where not all are told."""
    wanted = sum(now[name] - before.get(name, 0) for name in now)
    if not wanted:
        return {}
    found: dict[str, list[int]] = {}
    num_told = 0
    for entry in _read_entries():
        name = entry["process_group"][0]
        if entry.get("is_p2p") or not before.get(name, 0) < entry["collective_seq_id"] <= now.get(name, 0):
            continue
        pairs = list(zip(entry["input_sizes"], entry["input_dtypes"], strict=True))
        if any(kind not in _BYTES for _, kind in pairs):
            return None
        kind = entry["profiling_name"].rpartition(":")[2]
        counted = found.setdefault(kind, [0, 0])
        counted[0] += 1
        counted[1] += sum(math.prod(size) * _BYTES[dtype] for size, dtype in pairs)
        num_told += 1
    return found if num_told == wanted else None


def _read_entries() -> list[dict[str, Any]]:
    backend = str(dist.get_backend())
    if backend == "nccl" and hasattr(_recorder, "_dump_nccl_trace_json"):
        dumped = _recorder._dump_nccl_trace_json(True, False)
    elif hasattr(_recorder, "_dump_fr_trace_json"):
        dumped = _recorder._dump_fr_trace_json(True, False, backend)
    else:
        return []
    entries: list[dict[str, Any]] = json.loads(dumped).get("entries", [])
    return entries
