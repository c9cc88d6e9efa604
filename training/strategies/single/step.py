"""One rank, the plain module: the baseline that owes nothing to any wrapper."""

from collections.abc import Sequence

from training.data.batches import MicroBatch
from training.step.strategy import StepResult, Strategy


class Single(Strategy):
    """Micro-batches one after another on one model, which is the order of exact mode as well."""

    name = "single"

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        self._run(micro_batches, weight=1 / max(num_targets, 1))
        loss_sum, grad_norm = self.replica.optimizer_step(learning_rate)
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm)

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        with self.replica.keep_casts():
            for micro_batch in micro_batches:
                self.replica.forward_backward(self.replica.module, micro_batch, weight=weight)


build = Single.build
