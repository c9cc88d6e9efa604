"""What every strategy around a replica answers alike, unless it says otherwise."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from training.process.heartbeat import StepSection
from training.step.replica import Replica


class AroundReplica:
    """A strategy whose step is computed by a replica, which is told who listens."""

    counts_rows: bool = True

    replica: Replica
    """Model and optimizer, or this rank's part of them."""

    @property
    def on_section(self) -> Callable[[StepSection], None]:
        """Told what comes next in a step."""
        return self.replica.on_section

    @on_section.setter
    def on_section(self, listener: Callable[[StepSection], None]) -> None:
        self.replica.on_section = listener

    @property
    def kept_weights(self) -> Sequence[Tensor]:
        """None: the module's own are all."""
        return ()

    @property
    def module(self) -> nn.Module:
        """The model, of whose parameters this rank may have a part."""
        return self.replica.module

    @property
    def optimizer(self) -> Optimizer:
        """What turns the gradient into this rank's updates."""
        return self.replica.optimizer

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes, which is whole."""
        return self.replica.num_checkpoint_bytes

    def may_overflow(self) -> bool:
        """Return whether a step with a non-finite gradient is a normal event."""
        return self.replica.may_overflow()

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return nothing: nobody else times anything."""
        return {}
