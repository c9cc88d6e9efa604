"""A strategy whose ranks hold the whole model each: all that it needs beside the step, which replica.py computes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from training.data.batches import MicroBatch
from training.process.distributed import Ranks
from training.step.around_replica import AroundReplica
from training.step.replica import Replica
from training.step.strategy import Digests, Part, StepResult


class ReplicatedStep(Protocol):
    """How such a strategy makes a step; see Strategy."""

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update."""
        ...

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return how the exchange is laid out."""
        ...

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return what the step's engine times by itself."""
        ...


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
