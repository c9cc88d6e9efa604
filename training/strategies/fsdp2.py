"""Fully sharded: of every weight, gradient and moment a rank holds some rows, and gathers a layer while it runs.

torch's own `fully_shard`: one unit per layer of the model, and the root for the rest, embedding and head in it, tied or
not. Gradients are summed up where they arise and reduced with the last micro-batch of a step only.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.layers import list_layers
from training.model.weights import TensorDigest, map_tied_names
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.process.heartbeat import StepSection
from training.step.replica import Replica
from training.step.shards import clip_part, gather_whole, select_own_rows
from training.step.strategy import STATE, WEIGHTS, Digests, Part, StepResult
from training.step.traffic import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Traffic
from training.workloads import Workload

OPTIONS = {"reshard_after_forward": True}
"""reshard_after_forward: whether a layer's weights are given up after its forward and gathered again in the backward;
kept, they are gathered once per micro-batch and take the memory of ZeRO-2 meanwhile."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Fsdp2":
    """Return the strategy, on any number of ranks.

    Raises ValueError in exact mode, UnfitModelError for what it cannot do yet: compiled layers, fp16.
    """
    if config.exact:
        raise ValueError("exact: true with strategy fsdp2; allowed: exact: false, or strategy ddp")
    for name, is_asked in (("compile: true", config.compile), ("precision: fp16", config.precision == "fp16")):
        if is_asked:
            raise UnfitModelError(f"{name} is not available for the strategy fsdp2; leave it, or use strategy ddp")
    return Fsdp2(model, workload, config, ranks)


class _Sent:
    """What this rank put into collectives so far, and whether a gradient that it put in was not finite."""

    def __init__(self) -> None:
        self.counts = {kind: Traffic(0, 0) for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)}
        self.is_watched = False
        self.is_finite = True

    def count(self, kind: str, tensor: Tensor) -> None:
        """Note one more."""
        number, num_bytes = self.counts[kind]
        self.counts[kind] = Traffic(number + 1, num_bytes + tensor.nbytes)

    def since(self, before: Mapping[str, Traffic]) -> dict[str, Traffic]:
        """Return what came after `before`."""
        return {
            kind: Traffic(now.number - before[kind].number, now.num_bytes - before[kind].num_bytes)
            for kind, now in self.counts.items()
        }


class _Gather(AllGather):
    """All-gather as torch does it, counted."""

    def __init__(self, sent: _Sent) -> None:
        self._sent = sent

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self._sent.count(ALL_GATHER, input_tensor)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class _Scatter(ReduceScatter):
    """Reduce-scatter as torch does it, counted; what goes in is this rank's own gradient."""

    def __init__(self, sent: _Sent) -> None:
        self._sent = sent

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        self._sent.count(REDUCE_SCATTER, input_tensor)
        if self._sent.is_watched:
            self._sent.is_finite = self._sent.is_finite and bool(input_tensor.isfinite().all())
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)


class Fsdp2:
    """Micro-batches are shared out over the ranks; one copy of the state is spread over them, which rank 0 writes."""

    counts_rows = True

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        self.data_rank, self.data_world_size = ranks.rank, ranks.world_size
        self._ranks = ranks
        self._group: Any = ranks.gradient_group
        self._max_grad_norm = config.max_grad_norm
        self._reshards: bool = {**OPTIONS, **config.options}["reshard_after_forward"]
        self._sent = _Sent()
        # Asked while there is a whole model to answer: whether its head is a plain matrix, say.
        model.eval()
        with torch.no_grad():
            workload.loss_sum(model, workload.make_dummy_micro_batch(config.seq_len))
        self._replica = Replica(model, workload, config, ranks.device, shard=self._shard, clip=self._clip)
        self._units = [part for part in model.modules() if isinstance(part, FSDPModule)]
        self._root: Any = model

    def _shard(self, model: nn.Module) -> None:
        mesh = DeviceMesh.from_group(self._group, self._ranks.device.type)
        for layer in list_layers(model):
            fully_shard(layer, mesh=mesh, reshard_after_forward=self._reshards)
        # Its weights stay gathered from forward to backward: the loss multiplies by the head's after the forward.
        fully_shard(model, mesh=mesh, reshard_after_forward=False)
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                # A sum, on whatever backend; the factor alone is not taken by gloo, and both hold for one unit only.
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(True)
                unit.set_custom_all_gather(_Gather(self._sent))
                unit.set_custom_reduce_scatter(_Scatter(self._sent))

    @property
    def on_section(self) -> Callable[[StepSection], None]:
        """Told what comes next in a step."""
        return self._replica.on_section

    @on_section.setter
    def on_section(self, listener: Callable[[StepSection], None]) -> None:
        self._replica.on_section = listener

    @property
    def on_gradient(self) -> Callable[[], None] | None:
        """Called when the gradient is reduced and not yet clipped."""
        return self._replica.on_gradient

    @on_gradient.setter
    def on_gradient(self, listener: Callable[[], None] | None) -> None:
        self._replica.on_gradient = listener

    @property
    def module(self) -> nn.Module:
        """The model, of whose parameters this rank has some rows."""
        return self._replica.module

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes, which is whole."""
        return self._replica.num_checkpoint_bytes

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = dict(self._sent.counts)
        self._run(micro_batches, weight=1 / max(num_targets, 1))
        loss_sum, grad_norm = self._replica.step(learning_rate)
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=self._sent.since(before))

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        *earlier, last = micro_batches
        if earlier:
            self._root.set_requires_gradient_sync(False)
            for micro_batch in earlier:
                self._replica.add(self._root, micro_batch, weight=weight)
            self._root.set_requires_gradient_sync(True)
        self._replica.add(self._root, last, weight=weight)

    def _clip(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Scale every rank's rows of the gradient by the norm of the whole."""
        mine = [_get_local_rows(part.grad) for part in parameters if part.grad is not None]
        squares = torch.stack(torch._foreach_norm(mine)).double().square().sum()
        if self._ranks.world_size > 1:
            self._sent.count(ALL_REDUCE, squares)
            dist.all_reduce(squares, group=self._group)
        return clip_part(mine, squares, most=self._max_grad_norm)

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""
        for micro_batches in self._replica.generate_warm_up_steps(micro_batch):
            self._run(micro_batches, weight=0.0)
            self._replica.forget_gradient()

    def may_overflow(self) -> bool:
        """Return False: there is no fp16."""
        return self._replica.may_overflow()

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether these micro-batches alone do: by what this rank gives to the reduction, which mixes all."""
        self._replica.forget_gradient()
        self._sent.is_watched = self._sent.is_finite = True
        self._run(micro_batches, weight=1 / max(num_targets, 1))
        self._sent.is_watched = False
        self._replica.forget_gradient()
        return self._sent.is_finite

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what is trained, by name, gathered one by one."""
        for name, part in self._replica.full_parameters():
            yield name, gather_whole(part, self._ranks)

    def full_gradient(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradient, by name, gathered one by one."""
        for name, part in self._replica.full_gradient():
            yield name, gather_whole(part, self._ranks)

    def digest(self) -> Digests:
        """Return the digest of the one copy, which every rank has gathered; as many as there are if they differ."""
        found = []
        for tensors in (dict(self.module.named_parameters()), self._replica.collect_moments()):
            digest = TensorDigest()
            for name, tensor in sorted(tensors.items()):
                digest.add(name, gather_whole(tensor, self._ranks))
            found.append(list(dict.fromkeys(self._ranks.gather_text(digest.hex()))))
        return Digests(*found)

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, gathered tensor by tensor; rank 0 keeps them, as a rank of ddp would have them."""
        tied = map_tied_names(self.module)
        weights: dict[str, Tensor] = {}
        for name, tensor in self.module.state_dict().items():
            first = tied.get(name, name)
            weights[name] = (
                weights[first] if first in weights else self._keep_on_first(gather_whole(tensor, self._ranks))
            )
        yield Part(WEIGHTS, weights if self._ranks.is_first else None)
        weights.clear()
        state = self._replica.state()
        state["optimizer"]["state"] = {
            index: {
                name: self._keep_on_first(gather_whole(value, self._ranks)) if isinstance(value, Tensor) else value
                for name, value in kept.items()
            }
            for index, kept in state["optimizer"]["state"].items()
        }
        yield Part(STATE, state if self._ranks.is_first else None)

    def _keep_on_first(self, whole: Tensor) -> Tensor:
        """Return it on rank 0, and nothing of it on the others."""
        return whole if self._ranks.is_first else torch.empty(0)

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its rows of it."""
        self._replica.require_fit(weights, state)
        own = self.module.state_dict()
        optimizer = self._replica.optimizer
        places = [part for group in optimizer.param_groups for part in group["params"]]
        moments = {
            index: {name: self._shard_moment(value, places[index]) for name, value in kept.items()}
            for index, kept in state["optimizer"]["state"].items()
        }
        optimizer.load_state_dict({**state["optimizer"], "state": moments})
        torch.set_rng_state(state["rng"])
        self._require_restored(moments)
        with torch.no_grad():
            for name, tensor in own.items():
                _get_local_rows(tensor).copy_(self._select_rows(weights[name], tensor))

    def _require_restored(self, moments: Mapping[int, Mapping[str, Any]]) -> None:
        restored = self._replica.optimizer.state_dict()["state"]
        for index, kept in moments.items():
            for name, saved in kept.items():
                found = restored.get(index, {}).get(name)
                if not isinstance(found, Tensor) or not torch.equal(
                    _get_local_rows(saved).cpu(), _get_local_rows(found).cpu()
                ):
                    raise ValueError(f"{name} of parameter {index} is not what was saved after it was restored")

    def _shard_moment(self, value: Any, parameter: nn.Parameter) -> Any:
        """Return a moment as the optimizer keeps it: the rows of this rank, if the parameter has those only."""
        like: Any = parameter.data
        if not isinstance(value, Tensor) or not isinstance(like, DTensor) or value.shape != like.shape:
            return value
        mine = select_own_rows(value, like, self._ranks).to(self._ranks.device, copy=True)
        return DTensor.from_local(
            mine, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def _select_rows(self, whole: Tensor, like: Tensor) -> Tensor:
        return select_own_rows(whole, like, self._ranks) if isinstance(like, DTensor) else whole

    def describe(self) -> dict[str, Any]:
        """Return `unit_bytes`: what the weights of each unit take on all ranks together, the root's first."""
        return {"unit_bytes": [self._count_bytes(unit) for unit in self._units]}

    def _count_bytes(self, unit: nn.Module) -> int:
        """Return the bytes of its own parameters, each padded so that every rank has as many rows."""
        inner = [other for other in unit.modules() if other is not unit and other in self._units]
        not_its_own = {id(part) for other in inner for part in other.parameters()}
        size = self._ranks.world_size
        return sum(
            -(-part.shape[0] // size) * size * math.prod(part.shape[1:]) * part.element_size()
            for part in unit.parameters()
            if id(part) not in not_its_own
        )

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return nothing: nobody else times anything."""
        return {}


def _get_local_rows(tensor: Any) -> Tensor:
    """Return this rank's rows of it, in place."""
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local
