"""What a rank asks of its device and its link, answered by emulated ones where its model is emulated.

Patches functions of training/ as soon as a rank imports it; any other model is left as it is.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, read_device
from tests.emulator.model import EmulatedModel
from training.config import TrainingConfig
from training.probing import timed_blocks
from training.probing.sweep import sweep_exchange
from training.record.cpu_use import CpuUse
from training.step.replica import Replica
from training.strategies.ddp import step as ddp
from training.strategies.ddp.step import GradientHook


def _replace(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Have what is decorated called in the place of that function, with it as the first argument."""

    def put(change: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def replacement(*given: Any, **named: Any) -> Any:
            return change(original, *given, **named)

        setattr(owner, name, replacement)

    return put


@_replace(ddp, "choose_hook")
def _exchange(of: Callable[..., Any], model: nn.Module, *, communicates: bool) -> GradientHook | None:
    """Return what has the link average a bucket, or without communication keeps it; the wrapper costs its time."""
    if not isinstance(model, EmulatedModel):
        found: GradientHook | None = of(model, communicates=communicates)
        return found

    def exchange(group: object, bucket: dist.GradBucket) -> Future[Tensor]:
        if communicates:
            return model.link.average(bucket.buffer(), group)
        kept: Future[Tensor] = Future()
        kept.set_result(bucket.buffer())
        return kept

    return exchange


@_replace(ddp.Ddp, "set_up")
def _set_up(of: Callable[..., Any], strategy: ddp.Ddp) -> None:
    """Take the size of a real bucket (MiB) that stands for one of the asked size (None: 25 MiB)."""
    model: Any = strategy.module
    if isinstance(model, EmulatedModel):
        size = model.device.real_bucket_mib(strategy._options["bucket_mib"])
        strategy._options = {**strategy._options, "bucket_mib": size}
    of(strategy)


@_replace(ddp.Ddp, "describe")
def _describe(of: Callable[..., Any], strategy: ddp.Ddp) -> dict[str, Any]:
    """Return how DDP's exchange is laid out, in bytes of the device's description."""
    found: dict[str, Any] = of(strategy)
    model = strategy.replica.module
    scale = model.device.bytes_per_real_byte if isinstance(model, EmulatedModel) else 1
    return {**found, "bucket_bytes": [scale * size for size in found["bucket_bytes"]]}


@_replace(Replica, "__init__")
def _make_replica(of: Callable[..., Any], replica: Replica, model: nn.Module, *more: Any, **named: Any) -> None:
    """Have an update wait for the exchange."""
    of(replica, model, *more, **named)
    if isinstance(model, EmulatedModel):
        replica.optimizer.register_step_pre_hook(lambda *_: model.rank.update())


@_replace(timed_blocks.BlockRunner, "_time_block")
def _time_block(of: Callable[..., Any], blocks: Any, made: Any, block: Any, run: Any) -> dict[str, Any]:
    """Have the device catch up with everything as the clock starts: it must not make up for the time it waited."""

    class StartingNow(CpuUse):
        def __init__(self) -> None:
            if isinstance(made.strategy.module, EmulatedModel):
                made.strategy.module.rank.at = time.monotonic()
            super().__init__()

    timed_blocks.CpuUse = StartingNow  # type: ignore[misc]
    try:
        found: dict[str, Any] = of(blocks, made, block, run)
    finally:
        timed_blocks.CpuUse = CpuUse  # type: ignore[misc]
    return found


@_replace(timed_blocks.BlockRunner, "sweep")
def _sweep(of: Callable[..., Any], blocks: Any, variant: Any, **named: Any) -> dict[str, Any]:
    """Sleep for the seconds of an all-reduce."""
    config: TrainingConfig = blocks.config
    if config.workload != WORKLOAD:
        found: dict[str, Any] = of(blocks, variant, **named)
        return found
    device: EmulatedDevice = read_device(Path(variant.overrides.get("model_dir", config.model_dir)))
    seconds = device.compute_link_seconds(blocks._ranks.world_size)
    return sweep_exchange(blocks._ranks, seconds_of_link=lambda _: seconds, **named)
