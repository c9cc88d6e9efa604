"""What the ranks exchange, read at sampled steps from torch's flight recorder."""

import math

from ddp_audit.observer.torch_private import read_recorded

_BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1}


def read_traffic(before: dict[str, int], now: dict[str, int]) -> dict[str, list[int]] | None:
    """Return kind -> [number, bytes given] of the collectives between two counts; None where not all are told."""
    wanted = sum(now[name] - before.get(name, 0) for name in now)
    if not wanted:
        return {}
    found: dict[str, list[int]] = {}
    num_told = 0
    for entry in read_recorded():
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
