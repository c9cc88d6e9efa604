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
from training.step.replica import Replica
from training.step.replicated import AroundReplica
from training.step.spread_state import WholeModel
from training.step.statistics import refuse_statistics
from training.step.strategy import STATE, WEIGHTS, Digests, Part, StepResult
from training.step.zero_engine import SENT, Fragments, ZeroEngine
from training.strategies import read_options, refuse
from training.workloads import Workload

PACKAGE = "deepspeed"
"""What has to be installed; `make params` looks for it."""
REHEARSES = False
"""Whether a step can be rehearsed without numbers."""
OPTIONS = {"stage": (2, 1, 3), "offload": ("none", "cpu"), "bucket_mib": None, "whole_below": 100_000}
"""stage: what each rank has a share of. 1: the moments; 2: the gradient, too; 3: the weights, too.
offload: cpu: moments, and the weights that are updated, wait in the host's memory, where the update is made.
bucket_mib: how large a bucket of gradients is (MiB; null: 500 million elements, as DeepSpeed has it).
whole_below: in stage 3 a weight of fewer elements is whole on every rank; as many as DeepSpeed has it."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "DeepSpeed":
    """Return the strategy, on any number of ranks.

    Raises UnfitModelError where the package is missing, and for what it cannot do: exact mode, fp16, compiled layers,
    ranks that share a GPU, weights that are not trained.
    """
    refuse_statistics(model, "the strategy deepspeed")
    refuse("deepspeed", {
        "exact: true": config.exact,
        "precision: fp16": config.precision == "fp16",
        "compile: true": config.compile,
        "oversubscribe: true": config.oversubscribe and ranks.device.type == "cuda",
        "a model with weights that stay as they are": not all(part.requires_grad for part in model.parameters()),
    })  # fmt: skip
    return DeepSpeed(model, workload, config, ranks)


class DeepSpeed(AroundReplica):
    """Micro-batches are shared out over the ranks; rank 0 writes the state, whose moments, at least, are spread."""

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        self.data_rank, self.data_world_size = ranks.rank, ranks.world_size
        self._ranks = ranks
        self._whole = WholeModel(model, config)
        self.replica = Replica(model, workload, config, ranks.device)
        self._engine = ZeroEngine(self.replica, config, ranks, read_options(OPTIONS, config))
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
        return (1 + len(self._whole.moments)) * sum(part.nbytes for part in self._whole.parameters.values())

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = dict(SENT.counts)
        # DeepSpeed averages over ranks, the loss is a mean over labels: undo the division by the number of ranks.
        self._run(micro_batches, weight=self._ranks.world_size / max(num_targets, 1))
        self.on_section(StepSection.UPDATE)
        grad_norm = self._engine.update(learning_rate)
        loss_sum = self.replica.forget_gradient()
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=SENT.since(before))

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the reduced gradient of a step's micro-batches."""
        # What was gathered for one micro-batch is given up before the next.
        with self.replica.keep_casts() if self._engine.stage < 3 else nullcontext():
            for number, micro_batch in enumerate(micro_batches, start=1):
                self.on_section(StepSection.FORWARD)
                is_last = number == len(micro_batches)
                self.replica.count_loss(self._engine.add(micro_batch, weight=weight, is_last=is_last))

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, with weights that are gathered as in a step."""
        total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        with self.replica.evaluate(), torch.no_grad():
            for micro_batch in micro_batches:
                self.on_section(StepSection.FORWARD)
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
            found = torch.autograd.grad(loss_sum * weight, self.replica.parameters, allow_unused=True)
            is_finite = all(bool(part.isfinite().all()) for part in found if part is not None) and is_finite
        return is_finite

    def _gather_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what is trained, by name; in stage 3 gathered one by one."""
        for name in sorted(self._whole.trained):
            yield name, self._get_whole(name)

    def _get_whole(self, name: str) -> Tensor:
        if self._engine.stage < 3:
            return self._parts[name].detach()
        return self._fragments.gather(name, self._engine.flats)

    def digest(self) -> Digests:
        """Return each rank's digest of the weights, in stage 3 one of all, and one of the moments."""
        parameters, moments = TensorDigest(), TensorDigest()
        for name, part in self._gather_parameters():
            parameters.add(name, part)
        for name, key, part in self._gather_moments():
            moments.add(f"{key} of {name}", part)
        moments.add("loss scale", self.replica.collect_moments()["loss scale"])
        of_weights, of_moments = (self._ranks.gather_text(one.hex()) for one in (parameters, moments))
        is_spread = self._engine.stage == 3
        return Digests(list(dict.fromkeys(of_weights)) if is_spread else of_weights, list(dict.fromkeys(of_moments)))

    def _gather_moments(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield parameter, kind and the whole of each moment on the CPU, one by one, in the optimizer's order."""
        state, flats = self.replica.optimizer.state, self._engine.flats
        for name in self._whole.trained:
            flat = self._fragments.own[name].flat
            for key in sorted(state.get(flats[flat], {})):
                own: list[Tensor] = [state[one].get(key, one) for one in flats]
                # A count of steps is one number; all else is as large as its parameter.
                yield name, key, self._fragments.gather(name, own) if key in self._whole.moments else own[flat].cpu()

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, gathered tensor by tensor; rank 0 keeps them, as a rank of ddp would have them."""
        whole, is_first = self._whole, self._ranks.is_first
        found: dict[str, Tensor] = {}
        for name in whole.trained:
            tensor = self._get_whole(name)
            if is_first:
                # Apart from what is trained on.
                found[name] = tensor.to("cpu", copy=True)
        found |= whole.constants
        weights = {name: found[whole.tied.get(name, name)] for name in whole.weights} if is_first else None
        yield Part(WEIGHTS, weights)
        found.clear()
        del weights
        yield Part(STATE, self._collect_state())

    def _collect_state(self) -> dict[str, Any] | None:
        """Return the whole state on rank 0; None on the others."""
        places = {name: place for place, name in enumerate(self._whole.trained)}
        kept: dict[int, dict[str, Tensor]] = {}
        for name, key, tensor in self._gather_moments():
            if self._ranks.is_first:
                kept.setdefault(places[name], {})[key] = tensor.clone()
        if not self._ranks.is_first:
            return None
        with self._engine.lend_flats():
            state = self.replica.state()
        groups = [
            {**group, "params": [places[name] for name in names]}
            for group, (_, names) in zip(state["optimizer"]["param_groups"], self._whole.groups, strict=True)
        ]
        without = [name for name, place in places.items() if place not in kept]
        return {**state, "optimizer": {"state": kept, "param_groups": groups}, "without_moments": without}

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
        found: dict[int, dict[str, Tensor]] = {}
        for place, name in enumerate(self._whole.trained):
            fragment = self._fragments.own[name]
            for key, value in saved.get(place, {}).items():
                own = found.setdefault(fragment.flat, {})
                if key in self._whole.moments:
                    whole = own.setdefault(key, torch.zeros_like(flats[fragment.flat], device="cpu").detach())
                    fragment.cut(whole).copy_(fragment.select(value))
                else:
                    own[key] = value
        return found

    def describe(self) -> dict[str, Any]:
        """Return how DeepSpeed lays its exchange out: see ZeroEngine."""
        return self._engine.describe()
