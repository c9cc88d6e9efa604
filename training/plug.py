"""The one plug: a workload from outside of this project, and the devices and links that its models run on.

A config may name a file of training/workloads/, as every params.yaml does, or any module by its whole name with dots,
as no params.yaml can. Such a module offers what Workload says. If it also offers `hardware`, its models run on that:
tests/emulator has devices and links that sleep. All others run on what the machine has.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from training.workloads import Workload

GradientHook = Callable[[Any, dist.GradBucket], Future[Tensor]]
"""A communication hook of DDP, which is given the group of the gradients as its state."""


class Hardware(Protocol):
    """What a rank asks of the device that its model runs on, and of its link to the others.

    That is once when a model is built, and once per block or per step of a measurement. Layers take their time by
    themselves, as does whoever collates rows.
    """

    def bucket_mib(self, model: nn.Module, asked: float | None) -> float | None:
        """Return how large DDP's buckets are to be (MiB) where so much is asked for; None: as DDP has them."""
        ...

    def gradient_hook(self, model: nn.Module, *, communicates: bool) -> GradientHook | None:
        """Return what exchanges a bucket of gradients, or takes its time without an exchange; None: as DDP does."""
        ...

    def make_update_hook(self, model: nn.Module) -> Callable[..., None] | None:
        """Return what an optimizer is to call before each of its steps; None: nothing."""
        ...

    def begin(self, model: nn.Module) -> None:
        """Take note that all ranks have met and a clock starts now: what was waited for until then is over."""
        ...

    def copy(self, model: nn.Module, num_micro_batches: int) -> None:
        """Take the time of copying so many micro-batches to the device, beyond what the copy takes by itself."""
        ...

    def compute_link_seconds(self, model_dir: Path, *, world_size: int) -> Callable[[int], float] | None:
        """Return the seconds of an all-reduce by its bytes, which are then slept for; None: one has to be made."""
        ...


@runtime_checkable
class _Plugged(Protocol):
    """A workload that brings the hardware of its models."""

    hardware: Hardware


class _Machine:
    """The machine's own devices and links, which take their time by themselves."""

    def bucket_mib(self, model: nn.Module, asked: float | None) -> float | None:
        return asked

    def gradient_hook(self, model: nn.Module, *, communicates: bool) -> GradientHook | None:
        return None

    def make_update_hook(self, model: nn.Module) -> Callable[..., None] | None:
        return None

    def begin(self, model: nn.Module) -> None:
        pass

    def copy(self, model: nn.Module, num_micro_batches: int) -> None:
        pass

    def compute_link_seconds(self, model_dir: Path, *, world_size: int) -> Callable[[int], float] | None:
        return None


_MACHINE = _Machine()


def select_hardware(workload: Workload) -> Hardware:
    """Return what the workload's models run on."""
    return workload.hardware if isinstance(workload, _Plugged) else _MACHINE
