"""DeepSpeed's ZeRO (Rajbhandari et al. 2020): moments, gradients and weights in shares, with our optimizer.

The engine runs forward, backward, reduction, clipping and update; rows, loss and optimizer are those of every other
strategy. The state is taken out of its shares and put back into them here: a checkpoint is that of a rank of ddp.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from training.data.batches import MicroBatch
from training.process.heartbeat import StepSection
from training.step.snapshot import Piece
from training.step.strategy import StepResult, Strategy
from training.strategies.deepspeed.engine import SENT, ZeroEngine


class DeepSpeed(Strategy):
    """Micro-batches are shared out over the ranks; rank 0 writes the state, whose moments, at least, are spread."""

    name = "deepspeed"
    has_replica = False

    @classmethod
    def find_unavailable(cls, model: nn.Module, options: Mapping[str, Any]) -> str | None:
        """Return weights that nothing updates."""
        is_frozen = not all(part.requires_grad for part in model.parameters())
        return "a model with weights that stay as they are" if is_frozen else None

    def set_up(self) -> None:
        """Give model and optimizer to the engine."""
        self._engine = ZeroEngine(self.replica, self._config, self._ranks, self._options)
        located = self._engine.locate()
        self._fragments = {name: located[self._own[name]] for name in self._whole.trained}
        size = self._ranks.world_size
        self.ranks_per_copy = size if self._engine.stage == 3 else 1, size

    @property
    def kept_weights(self) -> Sequence[Tensor]:
        """The shares of the weights that are updated, and in stage 3 those that are gathered."""
        shared: list[Any] = list(self._own.values()) if self._engine.stage == 3 else []
        return [*self._engine.flats, *(part.ds_tensor for part in shared)]

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        SENT.take()
        # DeepSpeed averages over ranks, the loss is a mean over labels: undo the division by the number of ranks.
        self._accumulate_gradient(micro_batches, weight=self._ranks.world_size / max(num_targets, 1))
        self.replica.on_section(StepSection.UPDATE)
        grad_norm = self._engine.optimizer_step(learning_rate)
        loss_sum = self.replica.reset()
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=SENT.take())

    def _accumulate_gradient(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the reduced gradient of a step's micro-batches."""
        # What was gathered for one micro-batch is given up before the next.
        with self.replica.keep_casts() if self._engine.stage < 3 else nullcontext():
            for number, micro_batch in enumerate(micro_batches, start=1):
                self.replica.on_section(StepSection.FORWARD)
                is_last = number == len(micro_batches)
                self.replica.count_loss(self._engine.forward_backward(micro_batch, weight=weight, is_last=is_last))

    def _compute_loss(self, micro_batch: MicroBatch) -> Tensor:
        """Return the losses, with weights that are gathered as in a step."""
        return self._engine.compute_loss(micro_batch)

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            # With a gradient that is not finite DeepSpeed goes all the way, and then leaves the update out.
            self._accumulate_gradient(micro_batches, weight=math.nan)
            self._engine.optimizer_step(0.0)
            self._engine.send_weights()
            self.replica.reset()

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether these micro-batches alone do, whose gradient is given to nobody."""
        is_finite, weight = True, 1 / max(num_targets, 1)
        for micro_batch in micro_batches:
            loss_sum = self._engine.compute_loss(micro_batch, weight=weight)
            result = torch.autograd.grad(loss_sum * weight, self.replica.parameters, allow_unused=True)
            is_finite = all(bool(part.isfinite().all()) for part in result if part is not None) and is_finite
        return is_finite

    def list_weights(self) -> dict[str, Piece]:
        """Return the whole weights, in stage 3 this rank's fragments of them."""
        if self._engine.stage < 3:
            return super().list_weights()
        flats = self._engine.flats
        return {name: self._make_piece(name, flats[part.flat]) for name, part in self._fragments.items()}

    def list_moments(self) -> dict[str, Piece]:
        """Return this rank's fragments of the moments."""
        state, flats = self.optimizer.state, self._engine.flats
        return {
            # A count of steps is one number; all else is as large as its parameter.
            f"{key} of {name}": self._make_piece(name, value) if key in self._whole.moments else Piece(value, ())
            for name, part in self._fragments.items()
            for key, value in state.get(flats[part.flat], {}).items()
        }

    def digest_order(self, title: str) -> Any:
        """Return the place of the parameter, by which digests of earlier versions were made."""
        name, trained = title.partition(" of ")[2], self._whole.trained
        return trained.index(name) if name in trained else len(trained), title

    def _make_piece(self, name: str, flat: Tensor) -> Piece:
        fragment = self._fragments[name]
        return Piece(fragment.cut(flat), self._whole.parameters[name].shape, fragment.start)

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its fragments of it."""
        whole, saved, flats = self._whole, state["optimizer"], self._engine.flats
        whole.require_fit(weights, state)
        moments: dict[int, dict[str, Tensor]] = {}
        for place, name in enumerate(whole.trained):
            fragment = self._fragments[name]
            for key, value in saved["state"].get(place, {}).items():
                own = moments.setdefault(fragment.flat, {})
                if key in whole.moments:
                    of_flat = own.setdefault(key, torch.zeros_like(flats[fragment.flat], device="cpu").detach())
                    fragment.cut(of_flat).copy_(fragment.select(value))
                else:
                    own[key] = value
        numbers = self._engine.number_flats()
        groups = [{**group, "params": own} for group, own in zip(saved["param_groups"], numbers, strict=True)]
        with self._engine.lend_flats():
            self.replica.load_state({**state, "optimizer": {"state": moments, "param_groups": groups}})
        self._engine.put_weights(
            {self._own[name]: weights[name] for name in whole.trained},
            {self._own[name]: fragment for name, fragment in self._fragments.items()},
        )

    def describe(self) -> dict[str, Any]:
        """Return how DeepSpeed lays its exchange out: see ZeroEngine."""
        return self._engine.describe()


STRATEGY = DeepSpeed
