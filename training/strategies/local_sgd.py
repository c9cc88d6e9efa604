"""Local SGD (Stich 2019; Lin et al. 2020) and DiLoCo (Douillard et al. 2023): ranks train alone, and meet now and then.

Every rank makes its own optimizer's steps on its share of each global batch, with nothing exchanged. Every few steps,
and at the end of a segment, the ranks' weights are brought together (training/step/outer_step.py). So it is another
training than one process's, and is not judged by having the same updates.

Between two meetings "the model" is that of the last one: it is what is evaluated, and what a checkpoint calls its
weights. What each rank has made of it since, and the moments that each keeps of its own, are the state beside it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.weights import compute_tensor_checksum, list_differences
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.process.heartbeat import StepSection
from training.step.outer_step import OuterStep
from training.step.own_state import gather_own
from training.step.replica import Replica
from training.step.replicated import Replicated
from training.step.strategy import STATE, Digests, MisfitError, Part, StepResult
from training.step.traffic import ALL_REDUCE, Traffic
from training.strategies.single import Single
from training.workloads import Workload

OPTIONS = {"every_steps": 8, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
"""What params.yaml may say under `options` of a cell with this strategy, and the defaults.

every_steps: after how many optimizer steps the ranks meet. outer_learning_rate: how far the weights then go towards the
mean of the ranks'; 1: all the way. outer_momentum: Nesterov momentum of the mean change, below 1. The defaults are the
plain average of local SGD; DiLoCo takes 0.7 and 0.9."""
TAKES_ADAPTERS = False
"""Whether `train.adapter` is for it."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "LocalSgd":
    """Return the strategy, on two ranks or more; raises ValueError for exact mode, UnfitModelError for fp16."""
    if config.exact:
        raise ValueError("exact: true with strategy local_sgd; allowed: exact: false, or strategy ddp")
    if ranks.world_size == 1:
        raise ValueError("world_size=1 with strategy local_sgd; allowed: 2 or more, or strategy single")
    if config.precision == "fp16":
        # Every rank would have a loss scale of its own.
        raise UnfitModelError("precision: fp16 is not available for the strategy local_sgd; take bf16, or strategy ddp")
    options = {**OPTIONS, **config.options}
    replica = Replica(model, workload, config, ranks.device)
    outer = OuterStep(
        replica.module, ranks, learning_rate=options["outer_learning_rate"], momentum=options["outer_momentum"]
    )
    return LocalSgd(replica, ranks, LocalStep(replica, ranks, outer, every_steps=options["every_steps"]))


class LocalStep(Single):
    """The step of one process on this rank's share of the micro-batches, and after every few of them a meeting."""

    def __init__(self, replica: Replica, ranks: Ranks, outer: OuterStep, *, every_steps: int) -> None:
        super().__init__(replica)
        self.outer = outer
        self._world_size = ranks.world_size
        self._every_steps = every_steps

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update of this rank alone, of the norm of its own gradient; see Strategy."""
        # The mean of all ranks' gradients is then that of the whole batch, however its labels are shared out.
        self._run(micro_batches, weight=self._world_size / max(num_targets, 1))
        loss_sum, grad_norm = self.replica.step(learning_rate)
        self.outer.num_since += 1
        result = StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic={ALL_REDUCE: Traffic(0, 0)})
        return self.meet(result) if self.outer.num_since >= self._every_steps else result

    def meet(self, result: StepResult) -> StepResult:
        """Return the step's result with what a meeting behind it exchanged."""
        self.replica.on_section(StepSection.COLLECTIVE)
        return replace(result, traffic={ALL_REDUCE: self.outer.meet()})

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and the exchange of a meeting, change nothing."""
        super().warm_up(micro_batch)
        self.outer.rehearse()

    def describe(self) -> dict[str, Any]:
        """Return `parcel_bytes`: of weights (fp32) in each exchange of a meeting."""
        return {"parcel_bytes": self.outer.parcel_bytes}


class LocalSgd(Replicated):
    """Every rank has weights and moments of its own; all of them are saved, and are the same state only together."""

    def __init__(self, replica: Replica, ranks: Ranks, step: LocalStep) -> None:
        super().__init__(replica, ranks, step)
        self._meet, self._outer = step.meet, step.outer

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes: weights, and those and the moments of every rank."""
        return (self._ranks.world_size + 1) * self.replica.num_checkpoint_bytes

    def end_step(self, result: StepResult, *, ends_segment: bool) -> StepResult:
        """Bring the ranks together at a segment's end, unless they have just met."""
        return self._meet(result) if ends_segment and self._outer.num_since else result

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of the losses of this rank's rows, by the model of the last meeting, without any exchange."""
        with self._outer.as_met():
            return self.replica.sum_losses(micro_batches)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model of the last meeting, by name."""
        with self._outer.as_met():
            found = list(self.replica.full_parameters())
        yield from found

    def full_gradient(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the mean of the ranks' gradients, by name: that of the whole batch where their weights are the same."""
        for name, part in self.replica.full_gradient():
            mean = part.detach().cpu().clone()
            dist.all_reduce(mean)
            yield name, mean / self._ranks.world_size

    def digest(self) -> Digests:
        """Return every rank's digest of the model of the last meeting, and one of all that all ranks have beside it."""
        with self._outer.as_met():
            parameters = self.replica.parameter_checksum()
        beside = {
            **self.replica.collect_moments(),
            **{f"own {name}": part for name, part in self._outer.collect_own().items()},
            **{f"outer momentum of {name}": part for name, part in self._outer.collect_momentum().items()},
            "steps since the last meeting": torch.tensor(self._outer.num_since),
        }
        everyones = "".join(self._ranks.gather_text(compute_tensor_checksum(beside)))
        return Digests(
            parameters=self._ranks.gather_text(parameters), optimizer=[hashlib.sha256(everyones.encode()).hexdigest()]
        )

    def snapshot(self) -> Iterator[Part]:
        """Yield the model of the last meeting, then the state: rank 0's as that of any replica, and all ranks' own."""
        with self._outer.as_met():
            weights, state = self.replica.snapshot(is_written=self._ranks.is_first)
        yield weights
        mine = {
            "moments": self.replica.optimizer.state_dict()["state"],
            "weights": self._outer.collect_own(),
            "rng": torch.get_rng_state(),
        }
        own = gather_own(mine, self._ranks)
        if state.content is None:
            yield state
            return
        outer = {"momentum": self._outer.collect_momentum(), "num_since": self._outer.num_since}
        yield Part(STATE, {**state.content, "ranks": own, "outer": outer})

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up the model of the last meeting, and what this rank had of its own."""
        if len(state["ranks"]) != self._ranks.world_size:
            raise ValueError(f"it is of {len(state['ranks'])} ranks; allowed: of {self._ranks.world_size}")
        own, outer = state["ranks"][self._ranks.rank], state["outer"]
        mine = {**state, "optimizer": {**state["optimizer"], "state": own["moments"]}, "rng": own["rng"]}
        self.replica.require_fit(weights, mine)
        trained = dict(self.replica.full_parameters()) if outer["num_since"] else {}
        wrong = list_differences(own["weights"], trained)
        wrong += list_differences(outer["momentum"], self._outer.collect_momentum())
        if wrong:
            raise MisfitError(STATE, wrong)
        self.replica.load_state(mine)
        self.replica.load_weights(weights, mine)
        self._outer.restore(own["weights"], outer["momentum"], num_since=outer["num_since"])
