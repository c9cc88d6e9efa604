"""The loss on the held-out rows while a training runs: every so many steps, and never while its clock does."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from training.data.batches import MicroBatch
from training.data.plan import make_micro_batches, make_segment_plan
from training.launch import TrainingLaunch
from training.process.failure import DivergedError
from training.process.files import read_stamps, require_unwritten
from training.step.strategy import Strategy


class Heldout:
    """The held-out rows in the training's own micro-batches, the longest rows first; opened only where it is asked."""

    def __init__(self, launch: TrainingLaunch) -> None:
        config = launch.config
        self._config, self._ranks = config, launch.ranks
        self._every = config.eval_every_steps if config.heldout_digest else 0
        if not self._every:
            return
        self._stamps = read_stamps(config.heldout_dir)
        self._source = launch.workload.open_slice(config.heldout_dir)
        # In another order: the longest rows first.
        order = np.argsort(-self._source.lengths(config.seq_len), kind="stable")
        self._plan = replace(make_segment_plan(self._source, config, config.segments[0]), order=order)

    def is_due(self, step: int) -> bool:
        """Return whether the rows are evaluated after this step, counted from 1 over the whole run."""
        return self._every > 0 and step % self._every == 0

    def compute_loss(self, strategy: Strategy, *, step: int) -> float:
        """Return the mean loss in nats per label, each label once, in the arithmetic of the training. Collective.

        Raises DivergedError if it is not finite, ChangedInputError if the rows were written to since the start.
        """
        mine = sum(float(strategy.sum_losses(part)) for part in self._deal(strategy))
        # Ranks that share their rows hold the loss of them once between them; see Strategy.sum_losses.
        total = float(self._ranks.gather(mine).sum())
        require_unwritten(self._config.heldout_dir, self._stamps)
        loss = total / max(int(self._plan.num_targets.sum()), 1)
        if not np.isfinite(loss):
            raise DivergedError(f"step {step}: the loss on the held-out rows is {loss}; lower learning_rate")
        return loss

    def _deal(self, strategy: Strategy) -> Iterator[list[MicroBatch]]:
        """Yield this rank's micro-batches as a step would have them, as many on every rank."""
        for number in range(1, self._plan.num_steps + 1):
            micro_batches = make_micro_batches(
                self._source, self._plan.step(number), rank=strategy.data_rank, world_size=strategy.data_world_size,
                seq_len=self._config.seq_len, seed=(self._config.seed, 0),
            )  # fmt: skip
            yield [micro_batch.to(self._ranks.device) for micro_batch in micro_batches]
