"""What a rank does in one optimizer step, operation by operation, as torch's profiler sees it.

Recording takes time of its own: what a timeline says is the order of things and what waits for what, not how long a
step takes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

from training.process.distributed import Ranks

_MOST_EVENTS = 5_000
"""Of a rank: the longest ones."""
EXCHANGE, DEVICE, HOST = "exchange", "device", "host"


def record_timeline(step: Callable[[], object], ranks: Ranks) -> dict[str, Any]:
    """Run the step and return what this rank did: events of (name, where, start, microseconds), in the order of time.

    `where` is exchange, device, or host and the number of its thread; starts are in microseconds after `started_at_ns`,
    which is the system's clock, so that the ranks of a machine stand on one axis. Raises RuntimeError as the profiler
    does.
    """
    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} if ranks.device.type == "cuda" else {ProfilerActivity.CPU}
    with profile(activities=list(wanted & set(supported_activities()))) as found:
        step()
        ranks.synchronize()
    events = [
        [event.name[:120], _find_place(event), event.time_range.start, event.time_range.elapsed_us()]
        for event in found.events() or []
    ]
    longest = sorted(events, key=lambda event: -event[3])[:_MOST_EVENTS]
    results = found.profiler.kineto_results if found.profiler else None
    return {
        "started_at_ns": 0 if results is None else results.trace_start_ns(),
        "events": sorted(longest, key=lambda event: event[2]),
        "num_left_out": len(events) - len(longest),
    }


def _find_place(event: Any) -> str:
    if event.is_async or event.name.startswith(("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")):
        return EXCHANGE
    return DEVICE if event.device_type == torch.autograd.DeviceType.CUDA else f"{HOST} {event.thread}"
