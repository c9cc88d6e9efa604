"""A strategy whose ranks hold the whole model each: all that it needs beside the step, which replica.py computes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from training.data.batches import MicroBatch
from training.process.distributed import Ranks
from training.process.heartbeat import StepSection
from training.step.replica import Replica
from training.step.strategy import Digests, Part, StepResult


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


class ReplicatedStep(Protocol):
    """How such a strategy makes a step; see Strategy."""

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update."""

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""

    def describe(self) -> dict[str, Any]:
        """Return how the exchange is laid out; nothing of one that exchanges nothing."""
        return {}

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return what the step's engine times by itself."""
        return {}


class Replicated(AroundReplica):
    """Every rank sees a share of the micro-batches of its own, holds all of the state, and rank 0 writes it."""

    def __init__(self, replica: Replica, ranks: Ranks, step: ReplicatedStep) -> None:
        self.replica = replica
        self.step = step
        self.data_rank = ranks.rank
        self.data_world_size = ranks.world_size
        self._ranks = ranks
        # The timed step is the step's own, with nothing in between.
        self.train_step = step.train_step
        self.warm_up = step.warm_up
        self.describe = step.describe

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return what the step's engine times by itself."""
        return self.step.own_timers(run)

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, without any exchange."""
        return self.replica.sum_losses(micro_batches)

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether these micro-batches alone give a finite gradient, which is exchanged with nobody."""
        return self.replica.gives_finite_gradient(micro_batches, weight=1 / max(num_targets, 1))

    def digest(self) -> Digests:
        """Return every rank's digests: each holds a copy."""
        return Digests(
            parameters=self._ranks.gather_text(self.replica.parameter_checksum()),
            optimizer=self._ranks.gather_text(self.replica.optimizer_checksum()),
        )

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state; rank 0 has them, whose copy is as good as any."""
        return self.replica.snapshot(is_written=self._ranks.is_first)

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, every rank for itself."""
        self.replica.restore(weights, state)
