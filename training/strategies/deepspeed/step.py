"""DeepSpeed's ZeRO (Rajbhandari et al. 2020): moments, gradients and weights in shares, with our optimizer.

The engine runs forward, backward, reduction, clipping and update; rows, loss and optimizer are those of every other
strategy. The state is taken out of its shares and put back into them here: a checkpoint is that of a rank of ddp.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.weights import TensorDigest
from training.process.distributed import Ranks
from training.process.heartbeat import StepSection
from training.step.snapshot import STATE, Digests, Part, WholeModel, collect_state
from training.step.strategy import StepResult, Strategy, require_combination
from training.strategies import fill_options
from training.strategies.deepspeed.engine import SENT, Fragments, ZeroEngine
from training.workloads import Workload


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "DeepSpeed":
    """Return the strategy, on any number of ranks.

    Raises UnfitModelError where the package is missing, and for what it does not go with.
    """
    is_frozen = not all(part.requires_grad for part in model.parameters())
    more = {"a model with weights that stay as they are": is_frozen}
    require_combination("deepspeed", model, config, ranks, more=more)
    return DeepSpeed(model, workload, config, ranks)


class DeepSpeed(Strategy):
    """Micro-batches are shared out over the ranks; rank 0 writes the state, whose moments, at least, are spread."""

    has_replica = False

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        self._whole = WholeModel(model, config)
        super().__init__(model, workload, config, ranks)
        self._engine = ZeroEngine(self.replica, config, ranks, fill_options("deepspeed", config.options))
        self._parts = dict(self.module.named_parameters())
        located = self._engine.locate()
        self._fragments = Fragments(
            ranks,
            {name: located[self._parts[name]] for name in self._whole.trained},
            {name: self._whole.parameters[name].shape for name in self._whole.trained},
        )

    @property
    def kept_weights(self) -> Sequence[Tensor]:
        """The shares of the weights that are updated, and in stage 3 those that are gathered."""
        shared: list[Any] = list(self._parts.values()) if self._engine.stage == 3 else []
        return [*self._engine.flats, *(part.ds_tensor for part in shared)]

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes, which is whole."""
        return self._whole.num_checkpoint_bytes

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = dict(SENT.counts)
        # DeepSpeed averages over ranks, the loss is a mean over labels: undo the division by the number of ranks.
        self._run(micro_batches, weight=self._ranks.world_size / max(num_targets, 1))
        self.replica.on_section(StepSection.UPDATE)
        grad_norm = self._engine.update(learning_rate)
        loss_sum = self.replica.forget_gradient()
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=SENT.since(before))

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the reduced gradient of a step's micro-batches."""
        # What was gathered for one micro-batch is given up before the next.
        with self.replica.keep_casts() if self._engine.stage < 3 else nullcontext():
            for number, micro_batch in enumerate(micro_batches, start=1):
                self.replica.on_section(StepSection.FORWARD)
                is_last = number == len(micro_batches)
                self.replica.count_loss(self._engine.add(micro_batch, weight=weight, is_last=is_last))

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, with weights that are gathered as in a step."""
        total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        with self.replica.evaluate(), torch.no_grad():
            for micro_batch in micro_batches:
                self.replica.on_section(StepSection.FORWARD)
                total += self._engine.compute_loss(micro_batch)
        return total

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            # With a gradient that is not finite DeepSpeed goes all the way, and then leaves the update out.
            self._run(micro_batches, weight=math.nan)
            self._engine.update(0.0)
            self._engine.send_weights()
            self.replica.forget_gradient()

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether these micro-batches alone do, whose gradient is given to nobody."""
        is_finite, weight = True, 1 / max(num_targets, 1)
        for micro_batch in micro_batches:
            loss_sum = self._engine.compute_loss(micro_batch, weight=weight)
            result = torch.autograd.grad(loss_sum * weight, self.replica.parameters, allow_unused=True)
            is_finite = all(bool(part.isfinite().all()) for part in result if part is not None) and is_finite
        return is_finite

    def _get_whole(self, name: str) -> Tensor:
        """Return a parameter, which in stage 3 is gathered."""
        if self._engine.stage < 3:
            return self._parts[name].detach()
        return self._fragments.gather(name, self._engine.flats)

    def digest(self) -> Digests:
        """Return each rank's digest of the weights, in stage 3 one of all, and one of the moments."""
        parameters, moments = TensorDigest(), TensorDigest()
        for name in sorted(self._whole.trained):
            parameters.add(name, self._get_whole(name))
        for name, key, part in self._gather_moments():
            moments.add(f"{key} of {name}", part)
        moments.add("loss scale", self.replica.collect_others()["loss scale"])
        of_weights, of_moments = (self._ranks.gather_text(item.hex()) for item in (parameters, moments))
        is_spread = self._engine.stage == 3
        return Digests(list(dict.fromkeys(of_weights)) if is_spread else of_weights, list(dict.fromkeys(of_moments)))

    def _gather_moments(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield parameter, kind and the whole of each moment on the CPU, one by one, in the optimizer's order."""
        state, flats = self.replica.optimizer.state, self._engine.flats
        for name in self._whole.trained:
            flat = self._fragments.own[name].flat
            for key in sorted(state.get(flats[flat], {})):
                own: list[Tensor] = [state[item].get(key, item) for item in flats]
                # A count of steps is one number; all else is as large as its parameter.
                yield name, key, self._fragments.gather(name, own) if key in self._whole.moments else own[flat].cpu()

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, gathered tensor by tensor; rank 0 keeps them, as a rank of ddp would have them."""
        whole, is_first = self._whole, self._ranks.is_first
        parameters = ((name, self._get_whole(name)) for name in whole.trained)
        yield whole.collect_weights(parameters, is_kept=is_first)
        moments = ((name, key, tensor.clone()) for name, key, tensor in self._gather_moments())
        others = self.replica.state_of_all()
        yield Part(STATE, collect_state(self.optimizer, whole.groups, moments, others, is_kept=is_first))

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its fragments of it."""
        whole, saved = self._whole, state["optimizer"]
        whole.require_fit(weights, state)
        numbers = self._engine.number_flats()
        moments = self._share_out(saved["state"])
        groups = [{**group, "params": own} for group, own in zip(saved["param_groups"], numbers, strict=True)]
        with self._engine.lend_flats():
            self.replica.load_state({**state, "optimizer": {"state": moments, "param_groups": groups}})
        self._engine.put_weights(
            {self._parts[name]: weights[name] for name in whole.trained},
            {self._parts[name]: fragment for name, fragment in self._fragments.own.items()},
        )

    def _share_out(self, saved: Mapping[int, Mapping[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
        """Return flat tensor -> what of saved moments is this rank's, laid out as it is."""
        flats = self._engine.flats
        tensors: dict[int, dict[str, Tensor]] = {}
        for place, name in enumerate(self._whole.trained):
            fragment = self._fragments.own[name]
            for key, value in saved.get(place, {}).items():
                own = tensors.setdefault(fragment.flat, {})
                if key in self._whole.moments:
                    whole = own.setdefault(key, torch.zeros_like(flats[fragment.flat], device="cpu").detach())
                    fragment.cut(whole).copy_(fragment.select(value))
                else:
                    own[key] = value
        return tensors

    def describe(self) -> dict[str, Any]:
        """Return how DeepSpeed lays its exchange out: see ZeroEngine."""
        return self._engine.describe()
