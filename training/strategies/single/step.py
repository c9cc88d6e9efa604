"""One rank, the plain module: the baseline that owes nothing to any wrapper."""

from collections.abc import Sequence

from training.data.batches import MicroBatch
from training.step.strategy import Strategy


class Single(Strategy):
    """Micro-batches one after another on one model, which is the order of exact mode as well."""

    name = "single"

    def _accumulate_gradient(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        with self.replica.keep_casts():
            for micro_batch in micro_batches:
                self.replica.forward_backward(self.module, micro_batch, weight=weight)


STRATEGY = Single
