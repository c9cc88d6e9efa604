"""ZeRO-1 (Rajbhandari et al. 2020): every rank holds the weights, and the optimizer's state of a share of them.

The gradient is reduced as with ddp. Then each rank updates the parameters that are dealt to it, and sends them to the
others. The update of a parameter needs its own gradient alone, beside the norm, which all ranks have: so every weight
is what ddp makes of it, to the bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.weights import TensorDigest
from training.process.distributed import Ranks
from training.step.replica import Replica
from training.step.replicated import Replicated, ReplicatedStep
from training.step.strategy import STATE, Digests, Part, StepResult
from training.step.traffic import BROADCAST, Traffic
from training.strategies import ddp, refuse
from training.workloads import Workload

OPTIONS = ddp.OPTIONS
"""Of ddp, which reduces the gradient."""
TAKES_ADAPTERS = True
"""Whether `train.adapter` is for it: all of a model is on every rank, the factors too."""
SYNCS_STATISTICS = True
"""Whether `model.norm: sync_batch` is for it."""

_ALIGNMENT = 64
"""Elements: a parameter begins where a tensor of its own could, so that every kernel treats it as one."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Zero1":
    """Return the strategy, on any number of ranks; raises UnfitModelError for fp16 and in exact mode."""
    refuse("zero1", {"precision: fp16": config.precision == "fp16", "exact: true": config.exact})
    shares = Shares(ranks)
    replica = Replica(model, workload, config, ranks.device, deal=shares.deal)
    step = ddp.build_step(replica, model, config, ranks, communicates=communicates)
    return Zero1(replica, ranks, Zero1Step(step, shares, communicates=communicates), shares)


class Shares:
    """Which rank updates which parameters; those of one rank lie side by side, so that they are sent at once."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.owners: dict[nn.Parameter, int] = {}
        """Parameter -> its rank."""
        self.flats: list[Tensor] = []
        """Rank -> all of its parameters, with room between them."""

    def deal(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Deal the parameters out, the largest first to whoever has least, and return those of this rank.

        Each becomes a view of one tensor of its rank.
        """
        sizes = [0] * self._ranks.world_size
        for part in sorted(parameters, key=torch.numel, reverse=True):
            self.owners[part] = sizes.index(min(sizes))
            sizes[self.owners[part]] += _count_room(part)
        self.flats = [torch.zeros(size, device=self._ranks.device) for size in sizes]
        ends = [0] * self._ranks.world_size
        for part, owner in self.owners.items():
            place = self.flats[owner][ends[owner] : ends[owner] + part.numel()].view_as(part)
            place.copy_(part.detach())
            part.data = place
            ends[owner] += _count_room(part)
        return [part for part in parameters if self.owners[part] == self._ranks.rank]

    def send(self) -> Traffic:
        """Have every rank's parameters on all of them; return what was put into it."""
        if self._ranks.world_size == 1:
            return Traffic(0, 0)
        group: Any = self._ranks.gradient_group
        sent = [(owner, flat) for owner, flat in enumerate(self.flats) if len(flat)]
        works: list[Any] = [dist.broadcast(flat, group=group, group_src=owner, async_op=True) for owner, flat in sent]
        for work in works:
            work.wait()
        return Traffic(len(sent), sum(flat.nbytes for _, flat in sent))


def _count_room(parameter: Tensor) -> int:
    return -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT


class Zero1Step:
    """The step of ddp, of whose update every rank makes a share."""

    def __init__(self, step: ReplicatedStep, shares: Shares, *, communicates: bool) -> None:
        self._step = step
        self._shares = shares
        self._communicates = communicates

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        result = self._step.train_step(micro_batches, num_targets=num_targets, learning_rate=learning_rate)
        if not self._communicates:
            return result
        sent = self._shares.send()
        traffic = {**result.traffic, BROADCAST: sent} if sent.number else result.traffic
        return StepResult(loss_sum=result.loss_sum, grad_norm=result.grad_norm, traffic=traffic)

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""
        self._step.warm_up(micro_batch)
        if self._communicates:
            self._shares.send()

    def describe(self) -> dict[str, Any]:
        """Return what ddp says, `share_bytes` of the weights that each rank updates and sends, `largest_bytes` of one
        of them, which is never divided, and their number.
        """
        shares = self._shares
        return {
            **self._step.describe(),
            "share_bytes": [flat.nbytes for flat in shares.flats],
            "largest_bytes": max(part.nbytes for part in shares.owners),
            "num_parameters": len(shares.owners),
        }

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return what DDP times of the gradient's exchange."""
        return self._step.own_timers(run)


class Zero1(Replicated):
    """Every rank holds all weights; of the moments they hold one copy between them, which rank 0 writes."""

    def __init__(self, replica: Replica, ranks: Ranks, step: ReplicatedStep, shares: Shares) -> None:
        super().__init__(replica, ranks, step)
        self._shares = shares

    def digest(self) -> Digests:
        """Return every rank's digest of the parameters, and one of the moments, as of a rank that has all."""
        digest = TensorDigest()
        names = {part: name for name, part in self.module.named_parameters()}
        wanted = {f"{key} of {names[part]}": (part, key) for part, key in self._list_moments()}
        own = self.replica.collect_moments()
        for name in sorted(wanted.keys() | own.keys()):
            digest.add(name, self._gather_moment(*wanted[name]) if name in wanted else own[name])
        return Digests(
            parameters=self._ranks.gather_text(self.replica.parameter_checksum()),
            optimizer=list(dict.fromkeys(self._ranks.gather_text(digest.hex()))),
        )

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, the moments gathered tensor by tensor; rank 0 keeps them, as a rank of ddp would."""
        weights, _ = self.replica.snapshot(is_written=self._ranks.is_first)
        yield weights
        yield Part(STATE, self._collect_state())

    def _collect_state(self) -> dict[str, Any] | None:
        """Return the whole state on rank 0; None on the others."""
        found = self._list_moments()
        kept: dict[int, dict[str, Tensor]] = {}
        places = {part: place for place, part in enumerate(self._list_dealt())}
        for part, key in found:
            tensor = self._gather_moment(part, key)
            if self._ranks.is_first:
                kept.setdefault(places[part], {})[key] = tensor
        if not self._ranks.is_first:
            return None
        state, with_moments = self.replica.state(), {part for part, _ in found}
        groups, start = [], 0
        for group, parts in zip(state["optimizer"]["param_groups"], self.replica.groups, strict=True):
            groups.append({**group, "params": list(range(start, start + len(parts)))})
            start += len(parts)
        without = [name for name, part in self.module.named_parameters() if part in places and part not in with_moments]
        return {**state, "optimizer": {"state": kept, "param_groups": groups}, "without_moments": without}

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its share of the moments."""
        self.replica.require_fit(weights, state)
        saved = state["optimizer"]
        mine = [place for place, part in enumerate(self._list_dealt()) if self._is_mine(part)]
        groups, start = [], 0
        for group, parts in zip(saved["param_groups"], self.replica.groups, strict=True):
            num_mine = sum(map(self._is_mine, parts))
            groups.append({**group, "params": list(range(start, start + num_mine))})
            start += num_mine
        own = {number: saved["state"][place] for number, place in enumerate(mine) if place in saved["state"]}
        self.replica.load_state({**state, "optimizer": {"state": own, "param_groups": groups}})
        self.replica.load_weights(weights, state)

    def _list_dealt(self) -> list[nn.Parameter]:
        """Return what is trained in the order in which an optimizer of all would number it."""
        return [part for group in self.replica.groups for part in group]

    def _is_mine(self, parameter: nn.Parameter) -> bool:
        return self._shares.owners[parameter] == self._ranks.rank

    def _list_moments(self) -> list[tuple[nn.Parameter, str]]:
        """Return every moment that a rank has, in an order that is the same on all."""
        dealt, state = self._list_dealt(), self.replica.optimizer.state
        mine = [[place, key] for place, part in enumerate(dealt) for key in sorted(state.get(part, {}))]
        return [(dealt[place], key) for place, key in sorted(chain.from_iterable(self._ranks.gather_json(mine)))]

    def _gather_moment(self, parameter: nn.Parameter, key: str) -> Tensor:
        """Return a moment on the CPU of every rank. Collective."""
        if self._is_mine(parameter):
            tensor: Tensor = self.replica.optimizer.state[parameter][key].detach().cpu()
        else:
            # A count of steps is one number; all else is as large as its parameter.
            tensor = torch.empty(() if key == "step" else parameter.shape)
        if self._ranks.world_size > 1:
            dist.broadcast(tensor, src=self._shares.owners[parameter])
        return tensor
