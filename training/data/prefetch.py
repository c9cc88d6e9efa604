"""The micro-batches of the next step, made ready while the present one runs."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from training.data.batches import MicroBatch


def prefetch_micro_batches(
    make: Callable[[int], list[MicroBatch]],
    steps: range,
    device: torch.device,
    *,
    on_wait: Callable[[int], None] = lambda _: None,
    on_ahead: Callable[[Future[list[MicroBatch]]], None] = lambda _: None,
) -> Iterator[tuple[int, list[MicroBatch], float]]:
    """Yield (step, its micro-batches on the device, seconds waited for them) for every step.

    `make` runs in one background thread, one step ahead. For CUDA it hands over pinned memory, so that the copy to the
    device runs beside the host. `on_wait` is told each step before it is waited for, `on_ahead` what will be the
    micro-batches of each further step when they are begun.
    """

    def make_ready(step: int) -> list[MicroBatch]:
        micro_batches = make(step)
        return [part.pin_memory() for part in micro_batches] if device.type == "cuda" else micro_batches

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as thread:
        ahead = thread.submit(make_ready, steps.start) if steps else None
        for step in steps:
            assert ahead is not None
            on_wait(step)
            started = time.perf_counter()
            micro_batches = ahead.result()
            data_wait_seconds = time.perf_counter() - started
            if step + 1 in steps:
                ahead = thread.submit(make_ready, step + 1)
                on_ahead(ahead)
            yield step, [part.to(device) for part in micro_batches], data_wait_seconds
