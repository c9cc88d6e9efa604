"""What a rank asks of its device and its link, answered by emulated ones where its model is emulated.

Patches functions of training/ as soon as a rank imports it; any other model is left as it is.
"""

import time
from pathlib import Path

from torch.futures import Future

from tests.emulator import WORKLOAD
from tests.emulator.device import read_device
from tests.emulator.model import EmulatedModel
from tests.mutants.patching import Patch
from training.probing import timed_blocks
from training.probing.sweep import sweep_exchange
from training.record.cpu_use import CpuUse
from training.step import replica
from training.strategies.ddp import step as ddp


def _exchange(of, model, *, communicates):
    """Return what has the link average a bucket, or without communication keeps it; the wrapper costs its time."""
    if not isinstance(model, EmulatedModel):
        return of(model, communicates=communicates)

    def exchange(group, bucket):
        if communicates:
            return model.link.average(bucket.buffer(), group)
        kept = Future()
        kept.set_result(bucket.buffer())
        return kept

    return exchange


def _set_up(of, strategy):
    """Take the size of a real bucket (MiB) that stands for one of the asked size (None: 25 MiB)."""
    model = strategy.module
    if isinstance(model, EmulatedModel):
        size = model.device.real_bucket_mib(strategy._options["bucket_mib"])
        strategy._options = {**strategy._options, "bucket_mib": size}
    of(strategy)


def _describe(of, strategy):
    """Return how DDP's exchange is laid out, in bytes of the device's description."""
    found = of(strategy)
    model = strategy.replica.module
    scale = model.device.bytes_per_real_byte if isinstance(model, EmulatedModel) else 1
    return {**found, "bucket_bytes": [scale * size for size in found["bucket_bytes"]]}


def _make_replica(of, replica, model, *more, **named):
    """Have an update wait for the exchange."""
    of(replica, model, *more, **named)
    if isinstance(model, EmulatedModel):
        replica.optimizer.register_step_pre_hook(lambda *_: model.rank.update())


def _time_block(of, blocks, made, block, run):
    """Have the device catch up with everything as the clock starts: it must not make up for the time it waited."""

    class StartingNow(CpuUse):
        def __init__(self):
            if isinstance(made.strategy.module, EmulatedModel):
                made.strategy.module.rank.at = time.monotonic()
            super().__init__()

    timed_blocks.CpuUse = StartingNow
    try:
        found = of(blocks, made, block, run)
    finally:
        timed_blocks.CpuUse = CpuUse
    return found


def _sweep(of, blocks, variant, **named):
    """Sleep for the seconds of an all-reduce."""
    config = blocks.config
    if config.workload != WORKLOAD:
        return of(blocks, variant, **named)
    device = read_device(Path(variant.overrides.get("model_dir", config.model_dir)))
    seconds = device.compute_link_seconds(blocks._ranks.world_size)
    return sweep_exchange(blocks._ranks, seconds_of_link=lambda _: seconds, **named)


for module, name, change in (
    (ddp, "choose_hook", _exchange),
    (ddp, "Ddp.set_up", _set_up),
    (ddp, "Ddp.describe", _describe),
    (replica, "Replica.__init__", _make_replica),
    (timed_blocks, "BlockRunner._time_block", _time_block),
    (timed_blocks, "BlockRunner.sweep", _sweep),
):
    Patch(f"{module.__name__}:{name}", change).apply(vars(module))
