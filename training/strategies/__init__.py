"""How an update is computed on several ranks: one file per strategy, found by its name in params.yaml.

Each file offers `build(model, workload, config, ranks) -> Strategy`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from training.data import MicroBatch
from training.replica import Replica


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did on this rank; tensors stay on the device, so that nothing waits for it."""

    loss_sum: Tensor
    """() float64: sum of the losses of this rank's labels."""
    grad_norm: Tensor
    """() float32: L2 norm of the whole gradient, all ranks', before clipping."""
    num_all_reduces: int
    """Gradient all-reduces that this rank took part in."""
    num_all_reduce_bytes: int
    """Bytes of gradient that this rank put into them."""
    num_gathers: int = 0
    """All-gathers of gradients that this rank took part in; 0 unless the run is exact."""
    num_gather_bytes: int = 0
    """Bytes of gradient that this rank put into them."""


class Strategy(Protocol):
    """The seam between the loop and a strategy: one optimizer step."""

    replica: Replica
    """This rank's model and optimizer, for checkpoints and checksums."""

    @property
    def gradient_bucket_bytes(self) -> list[int]:
        """Bytes of each bucket in which gradients are all-reduced, once warmed up; [] where none are."""
        ...

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update: the mean loss over the `num_targets` labels of all ranks' micro-batches."""
        ...

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing: first times cost more and are not timed.

        The first call does it twice; a later one is the lead-in of a timed block.
        """
        ...
