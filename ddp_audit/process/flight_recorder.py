"""torch's flight recorder, which has no public name: what every collective was given. Tried on torch 2.10, 2.11, 2.15.

The process groups enter every collective there themselves, whoever calls it, DDP's reducer in C++ included: to read it
when the clock stands costs a step nothing.
"""

import json
import math
import os
from typing import Any

import torch

_BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1}
_c10d: Any = getattr(torch._C, "_distributed_c10d", None)


def start_recorder() -> None:
    """Have it keep collectives; to be called before the first group. From 2.11 on it does anyway."""
    if torch.__version__ < "2.11":
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def read_recorded(backend: str) -> dict[tuple[str, int], tuple[str, int | None]]:
    """Return (group, number of the collective in it) -> its kind, and the bytes of its inputs, None for other dtypes.

    Of collectives that have ended, too; messages from one rank to one other are none. NCCL's groups have a recorder of
    their own. Before 2.15 all others shared one, and no backend is asked for. None is kept without a recorder.
    """
    if backend == "nccl" and hasattr(_c10d, "_dump_nccl_trace_json"):
        dumped = _c10d._dump_nccl_trace_json(True, False)
    elif hasattr(_c10d, "_dump_fr_trace_json"):
        named = [backend] if hasattr(_c10d, "_reset_fr_trace") else []
        dumped = _c10d._dump_fr_trace_json(True, False, *named)
    else:
        return {}
    results: dict[tuple[str, int], tuple[str, int | None]] = {}
    for entry in json.loads(dumped).get("entries", []):
        if not entry.get("is_p2p"):
            pairs = list(zip(entry["input_sizes"], entry["input_dtypes"], strict=True))
            is_known = all(kind in _BYTES for _, kind in pairs)
            num_bytes = sum(math.prod(size) * _BYTES[kind] for size, kind in pairs) if is_known else None
            kind = entry["profiling_name"].rpartition(":")[2]
            results[entry["process_group"][0], entry["collective_seq_id"]] = kind, num_bytes
    return results


def forget_recorded(backend: str) -> None:
    """Empty it, so that the next look into it is a short one; before 2.15 only NCCL's."""
    if backend == "nccl" and hasattr(_c10d, "_reset_fr_recording_nccl"):
        _c10d._reset_fr_recording_nccl()
    elif hasattr(_c10d, "_reset_fr_trace"):
        _c10d._reset_fr_trace(backend)
