"""One rank, the plain module: the baseline that owes nothing to any wrapper."""

from collections.abc import Sequence

from torch import nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.process.distributed import Ranks
from training.step.strategy import StepResult, Strategy, require_combination
from training.workloads import Workload


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Single":
    """Return the strategy; raises ValueError on more than one rank."""
    if ranks.world_size != 1:
        raise ValueError(f"world_size={ranks.world_size} with strategy single; allowed: 1, or strategy ddp")
    require_combination("single", model, config, ranks)
    return Single(model, workload, config, ranks)


class Single(Strategy):
    """Micro-batches one after another on one model, which is the order of exact mode as well."""

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        self._run(micro_batches, weight=1 / max(num_targets, 1))
        loss_sum, grad_norm = self.replica.step(learning_rate)
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm)

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        with self.replica.keep_casts():
            for micro_batch in micro_batches:
                self.replica.add(self.replica.module, micro_batch, weight=weight)

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward and backward, change nothing."""
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            self._run(micro_batches, weight=0.0)
            self.replica.forget_gradient()
