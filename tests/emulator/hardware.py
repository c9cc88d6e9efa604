"""What a rank asks of its device and its link, answered by emulated ones (training/plug.py)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from tests.emulator.device import read_device
from tests.emulator.model import EmulatedModel
from training.plug import GradientHook
from training.strategies.ddp import Ddp

_describe = Ddp.describe


class EmulatedHardware:
    """The device and the link of an emulated model; see training.plug.Hardware."""

    def bucket_mib(self, model: nn.Module, asked: float | None) -> float:
        """Return the size of a real bucket (MiB) that stands for one of the asked size (None: 25 MiB)."""
        return _emulated(model).device.real_bucket_mib(asked)

    def gradient_hook(self, model: nn.Module, *, communicates: bool) -> GradientHook:
        """Return what has the link average a bucket, or without communication keeps it.

        What the wrapper itself costs is paid either way.
        """
        emulated = _emulated(model)

        def exchange(group: object, bucket: dist.GradBucket) -> Future[Tensor]:
            emulated.rank.run_wrapper()
            if communicates:
                return emulated.link.average(bucket.buffer(), group)
            kept: Future[Tensor] = Future()
            kept.set_result(bucket.buffer())
            return kept

        return exchange

    def make_update_hook(self, model: nn.Module) -> Callable[..., None]:
        """Return what takes the time of an update."""
        rank = _emulated(model).rank
        return lambda *_: rank.update()

    def begin(self, model: nn.Module) -> None:
        """Have the device catch up with everything: it must not make up for the time it waited."""
        _emulated(model).rank.start_now()

    def copy(self, model: nn.Module, num_micro_batches: int) -> None:
        """Take the time of so many copies to the device."""
        rank = _emulated(model).rank
        for _ in range(num_micro_batches):
            rank.copy_micro_batch()

    def compute_link_seconds(self, model_dir: Path, *, world_size: int) -> Callable[[int], float]:
        """Return the seconds of an all-reduce by its emulated bytes."""
        return partial(read_device(model_dir).compute_link_seconds, world_size=world_size)


def _emulated(model: nn.Module) -> EmulatedModel:
    assert isinstance(model, EmulatedModel), f"{type(model).__name__} is not the model of tests/emulator"
    return model


def _describe_emulated(strategy: Ddp) -> dict[str, Any]:
    """Return how DDP's exchange is laid out, in bytes of the device's description."""
    found, model = _describe(strategy), strategy.replica.module
    scale = model.device.bytes_per_real_byte if isinstance(model, EmulatedModel) else 1
    return {**found, "bucket_bytes": [scale * size for size in found["bucket_bytes"]]}


Ddp.describe = _describe_emulated  # type: ignore[method-assign]
