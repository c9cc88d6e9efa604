"""Which kernels a step runs, eager and compiled, and how long the device stands still between them."""

import gc
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day.steps import SETTINGS
from training.config import parse_config
from training.probing.variants import Variant, build_variant, load_micro_batches
from training.process.distributed import join_ranks

_NAMES = {"packed, 64 rows": "eager", "packed, 64 rows, compiled": "compiled"}
_MOST_KERNELS = 12
Kernel = tuple[str, float, float]
"""Name, start and microseconds."""


def run(day):
    """Profile one step of each."""
    config, results = parse_config(day.make_config()), {}
    with join_ranks(config) as ranks:
        for setting, part in _NAMES.items():
            results[setting] = summarize(_record(config, ranks, SETTINGS[part][setting]))
            lines = [f"{name}: {_format(result)}" for name, result in results.items()]
            day.write(profiles=results, lines=lines)
            gc.collect()
            torch.cuda.empty_cache()


def _record(config, ranks, changes):
    """Return the kernels of a step; that of the same rows before it, which costs more, is not among them."""
    made = build_variant(Variant(overrides=changes), config, ranks)
    for micro_batches, step, _ in load_micro_batches(made, ranks, [1], "device"):
        ranks.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            made.strategy.train_step(micro_batches, num_targets=made.plan.step(step).num_targets, learning_rate=0.0)
            ranks.synchronize()
    events = [event for event in recorded.events() or [] if event.device_type == torch.autograd.DeviceType.CUDA]
    return [(event.name, event.time_range.start, event.time_range.elapsed_us()) for event in events]


def summarize(kernels):
    """Return milliseconds from the first kernel to the last, how many of them none ran in, and the longest by name."""
    busy, end = 0.0, float("-inf")
    by_name, number = {}, Counter()
    for name, start, microseconds in sorted(kernels, key=lambda item: item[1]):
        busy += max(0.0, start + microseconds - max(start, end))
        end = max(end, start + microseconds)
        by_name[name] = by_name.get(name, 0.0) + microseconds
        number[name] += 1
    span = end - min(start for _, start, _ in kernels) if kernels else 0.0
    return {
        "num_kernels": len(kernels),
        "span_ms": span / 1e3,
        "idle_ms": (span - busy) / 1e3,
        "longest": [
            {"kernel": name[:160], "number": number[name], "ms": microseconds / 1e3}
            for name, microseconds in sorted(by_name.items(), key=lambda item: -item[1])[:_MOST_KERNELS]
        ],
    }


def _format(results):
    """Return the summary in a line, with the three longest."""
    longest = "; ".join(
        f"{item['ms']:.1f} ms in {item['number']} x {item['kernel'][:60]}" for item in results["longest"][:3]
    )
    idle = f"{results['idle_ms']:.1f} of {results['span_ms']:.1f} ms"
    return f"{results['num_kernels']:,} kernels, none running in {idle}; {longest}"
