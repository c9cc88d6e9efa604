"""One rank of benchmarks/levers.py: blocks of real optimizer steps, arm by arm, taking turns.

An arm is a variant of the cell (training/probing/variants.py), or lacks what every cell has. Where it has a `link`,
gradients also wait for an emulated one: they are really averaged over gloo, but not before the link would have carried
them.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from benchmarks.rounds import generate_rounds
from training.config import read_config
from training.probing.variants import Made, Variant, build_variant, load_micro_batches
from training.process.distributed import Ranks, join_ranks
from training.strategies.ddp import Ddp


class SlowLink:
    """A link that carries one tensor after another, beside the computation: latency + 2(N-1)/N * bytes / bandwidth."""

    def __init__(self, ranks: Ranks, *, mib_per_second: float, latency_ms: float) -> None:
        self._group: Any = ranks.gradient_group
        self._world_size = ranks.world_size
        self._seconds_per_byte = 2 * (ranks.world_size - 1) / ranks.world_size / (mib_per_second * 2**20)
        self._latency = latency_ms / 1e3
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._free_at = 0.0

    def average(self, tensor: Tensor) -> Future[Tensor]:
        """Begin to replace the tensor by its mean over all ranks."""
        self._free_at = max(self._free_at, time.monotonic()) + self._latency + tensor.nbytes * self._seconds_per_byte
        averaged: Future[Tensor] = Future()
        self._thread.submit(self._carry, tensor, self._free_at, averaged)
        return averaged

    def _carry(self, tensor: Tensor, at: float, averaged: Any) -> None:
        try:
            time.sleep(max(at - time.monotonic(), 0.0))
            dist.all_reduce(tensor.div_(self._world_size), group=self._group)
            averaged.set_result(tensor)
        except Exception as error:
            averaged.set_exception(error)


def _made(arm: dict[str, Any], config: Any, ranks: Ranks) -> Made:
    if arm["link"] is None:
        made = build_variant(Variant(overrides=arm["overrides"]), config, ranks)
    else:
        link = SlowLink(ranks, **arm["link"])
        with _exchanging_over(link):
            made = build_variant(Variant(overrides=arm["overrides"]), config, ranks)
    return _without(made, arm["lacks"])


class _UnfusedAdamW(torch.optim.AdamW):
    """As torch makes it by itself, which refuses to be told of a gradient that is not finite."""

    found_inf = property(lambda _: None, lambda *_: None)


def _without(made: Made, lacks: str | None) -> Made:
    """Take away what every training has: no_sync, the fused optimizer, rows of like length in a micro-batch."""
    strategy: Any = made.strategy
    if lacks == "no_sync":
        strategy.step._wrapped.no_sync = contextlib.nullcontext
    elif lacks == "fused optimizer":
        old = strategy.replica._optimizer
        groups = [{name: group[name] for name in ("params", "weight_decay")} for group in old.param_groups]
        strategy.replica._optimizer = _UnfusedAdamW(groups)
    elif lacks == "like lengths":
        # Rows that are as long as each other stay in the order drawn.
        plan = dataclasses.replace(made.plan, lengths=np.zeros_like(made.plan.lengths))
        return dataclasses.replace(made, plan=plan)
    return made


@contextlib.contextmanager
def _exchanging_over(link: SlowLink) -> Any:
    """Have every Ddp that is built inside exchange over the link."""
    build = Ddp.__init__

    def built(self: Ddp, *positional: Any, **options: Any) -> None:
        options["hook"] = lambda _, bucket: link.average(bucket.buffer())
        build(self, *positional, **options)

    Ddp.__init__ = built  # type: ignore[method-assign]
    try:
        yield
    finally:
        Ddp.__init__ = build  # type: ignore[method-assign]


def _block(made: Made, ranks: Ranks, steps: list[int]) -> tuple[float, float]:
    """Return the seconds per step of the slowest rank, and positions per token; the first step leads in."""
    batches = load_micro_batches(made, ranks, [steps[0], *steps], "loader")
    positions = tokens = 0
    started = 0.0
    for turn, (parts, step, _) in enumerate(batches):
        if turn == 1:
            ranks.highest(0)
            started = time.perf_counter()
        num_targets = made.plan.step(step).num_targets
        made.strategy.train_step(parts, num_targets=num_targets, learning_rate=0.0)
        positions += sum(part.input_ids.numel() for part in parts)
        tokens += sum(part.num_tokens for part in parts)
    seconds = (time.perf_counter() - started) / len(steps)
    return float(ranks.gather(np.array([seconds])).max()), positions / max(tokens, 1)


def main() -> None:
    """Time the arms of work_dir/arms.json; rank 0 writes work_dir/found.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = read_config(parser.parse_args().config)
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(config.threads_per_rank)
    asked = json.loads((config.work_dir / "arms.json").read_bytes())
    with join_ranks(config) as ranks:
        made = {name: _made(arm, config, ranks) for name, arm in asked["arms"].items()}
        found: dict[str, Any] = {name: {"seconds": [], "positions": 0.0} for name in made}
        order, random = generate_rounds(list(made), seed=1), np.random.default_rng(1)
        num_steps = min(len(one.source) // one.config.global_batch_size for one in made.values())
        for _ in range(asked["rounds"]):
            names = next(order)
            for half in (names[: len(made)], names[len(made) :]):
                start = int(random.integers(num_steps))
                steps = [(start + turn) % num_steps + 1 for turn in range(asked["steps"])]
                for name in half:
                    seconds, positions = _block(made[name], ranks, steps)
                    found[name]["seconds"].append(seconds)
                    found[name]["positions"] = positions
        for name, one in made.items():
            found[name]["warm_up_seconds"] = one.warm_up_seconds
        if ranks.is_first:
            (config.work_dir / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
