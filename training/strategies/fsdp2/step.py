"""Fully sharded: of every weight, gradient and moment a rank holds some rows, and gathers a layer while it runs.

torch's own `fully_shard`: one unit per layer of the model, and the root for the rest, embedding and head in it, tied or
not. Gradients are summed up where they arise and reduced with the last micro-batch of a step only.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from training.data.batches import MicroBatch
from training.model.layers import list_layers
from training.process.torch_private import forget_forward_order
from training.step.optimizer import clip_part, get_local_rows
from training.step.strategy import Strategy
from training.step.traffic import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Sent


def takes_dtypes_by_weight() -> bool:
    """Return whether torch gathers each weight in a dtype of its own: from 2.15 on."""
    return hasattr(MixedPrecisionPolicy, "param_dtype_override_fn")


class Fsdp2(Strategy):
    """Micro-batches are shared out over the ranks; a copy of the state is spread over them, or neighbours, and rank 0
    writes it."""

    name = "fsdp2"
    has_replica = False

    @classmethod
    def find_unavailable(cls, model: nn.Module, options: Mapping[str, Any]) -> str | None:
        """Return weights in bf16 by an earlier torch."""
        is_early = options["mixed"] != "none" and not takes_dtypes_by_weight()
        return f"mixed: bf16 with torch {torch.__version__}" if is_early else None

    def place_and_select_updated(self, model: nn.Module) -> Collection[nn.Parameter] | None:
        """Keep this rank's rows, on the host where they wait there; see Strategy."""
        self._ask_whole_model(model)
        options, self._is_mixed = self._options, self._options["mixed"] == "bf16"
        self._num_shards = self._ranks.world_size // int(options["replicas"])
        """Ranks that hold one copy, neighbours."""
        self.ranks_per_copy = self._num_shards, self._num_shards
        self._reduced = Reduced()
        self._sent = self._reduced
        mesh, offload = self._make_mesh(), OffloadPolicy()
        if options["offload"] == "cpu":
            offload = CPUOffloadPolicy(pin_memory=self._ranks.device.type == "cuda")
        mixed = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        if self._is_mixed:
            # What autocast casts to bf16, and that alone: norms and whatever goes into a layer stay as they are.
            mixed = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False,
                param_dtype_override_fn=lambda part: torch.bfloat16 if part.ndim > 1 else part.dtype,
            )  # fmt: skip
        for layer in list_layers(model):
            fully_shard(
                layer, mesh=mesh, mp_policy=mixed, offload_policy=offload,
                reshard_after_forward=options["reshard_after_forward"],
            )  # fmt: skip
        # Its weights stay gathered from forward to backward: the loss multiplies by the head's after the forward.
        self._root: Any = fully_shard(model, mesh=mesh, offload_policy=offload, reshard_after_forward=False)
        self._units: list[Any] = [part for part in model.modules() if isinstance(part, FSDPModule)]
        for unit in self._units:
            # A sum, on whatever backend; the factor alone is not taken by gloo, and both hold for one unit only.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_custom_all_gather(Gather(self._reduced))
            unit.set_custom_reduce_scatter(Scatter(self._reduced))
            if self._num_shards < self._ranks.world_size:
                unit.set_all_reduce_hook(partial(self._sent.count, ALL_REDUCE))
        return None if options["offload"] == "cpu" else super().place_and_select_updated(model)

    def set_up(self) -> None:
        """Have the optimizer update rows, by the norm of the whole gradient."""
        self.replica.clip = self._clip
        update_local_rows(self.optimizer)

    def _make_mesh(self) -> DeviceMesh:
        """Return the mesh of the ranks, with several replicas of groups of its own."""
        kind, size, number = self._ranks.device.type, self._ranks.world_size, self._num_shards
        if number == size:
            return DeviceMesh.from_group(self._group, kind)
        copies = [range(start, start + number) for start in range(0, size, number)]
        self._group = self._ranks.join_group(copies)
        alike = self._ranks.join_group([range(place, size, number) for place in range(number)])
        self._ranks.counted_groups.extend([self._group, alike])
        return DeviceMesh.from_group(
            [alike, self._group], kind, mesh=[list(copy) for copy in copies], mesh_dim_names=("replicas", "shards")
        )

    def _accumulate_gradient(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the sum of all ranks' gradients."""
        *earlier, last = micro_batches
        if earlier:
            self._root.set_requires_gradient_sync(False)
            for micro_batch in earlier:
                self.replica.forward_backward(self._root, micro_batch, weight=weight)
            self._root.set_requires_gradient_sync(True)
        self.replica.forward_backward(self._root, last, weight=weight)

    def _clip(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Scale every rank's rows of the gradient by the norm of the whole."""
        mine = [get_local_rows(part.grad) for part in parameters if part.grad is not None]
        squares = torch.stack(torch._foreach_norm(mine)).double().square().sum().to(self._ranks.device)
        if self._num_shards > 1:
            self._sent.count(ALL_REDUCE, squares)
            dist.all_reduce(squares, group=self._group)
        return clip_part(mine, squares.to(mine[0].device), most=self._config.max_grad_norm)

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, with weights that are gathered as in a step."""
        total = super().sum_losses(micro_batches)
        for unit in self._units:
            unit.reshard()
            # A backward would follow, torch thinks, and what the next one gathers ahead goes by this order.
            forget_forward_order(unit)
        return total

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether these micro-batches alone do: by what this rank gives to the reduction, which mixes all."""
        self.replica.reset()
        self._reduced.is_watched = self._reduced.is_finite = True
        self._accumulate_gradient(micro_batches, weight=1 / max(num_targets, 1))
        self._reduced.is_watched = False
        self.replica.reset()
        return self._reduced.is_finite

    def find_start(self, part: Tensor) -> int:
        """Return where this rank's rows begin, of which the last ranks may have none."""
        if not isinstance(part, DTensor):
            return 0
        return self._ranks.rank % self._num_shards * self._count_elements(part)

    def _count_elements(self, part: Tensor) -> int:
        """Return how many elements each rank has, those that fill up the last one's rows included."""
        return -(-part.shape[0] // self._num_shards) * math.prod(part.shape[1:])

    def cut_moment(self, whole: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return the rows of this rank, if the parameter has those only."""
        like: Any = parameter.data
        mine = self.cut(whole, like)
        if not isinstance(like, DTensor):
            return mine
        return DTensor.from_local(
            mine.to(like.device), like.device_mesh, like.placements,
            run_check=False, shape=like.shape, stride=like.stride(),
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return `unit_bytes`: what the weights of each unit take on all ranks of a copy, the root's first, and
        `gathered_bytes`, as they are gathered; `num_parameters` in all.

        A unit's parameters are those that are in no unit within it.
        """
        unit_bytes, gathered_bytes, num_parameters = [], [], 0
        for unit in self._units:
            inner = [other for other in unit.modules() if other is not unit and other in self._units]
            not_its_own = {id(part) for other in inner for part in other.parameters()}
            own = [part for part in unit.parameters() if id(part) not in not_its_own]
            sizes = [self._num_shards * self._count_elements(part) * part.element_size() for part in own]
            is_cast = self._is_mixed and unit is not self._root
            unit_bytes.append(sum(sizes))
            gathered_bytes.append(
                sum(size // (2 if is_cast and part.ndim > 1 else 1) for size, part in zip(sizes, own, strict=True))
            )
            num_parameters += len(own)
        return {"unit_bytes": unit_bytes, "gathered_bytes": gathered_bytes, "num_parameters": num_parameters}


class Reduced(Sent):
    """What this rank put into collectives so far, and whether a gradient that it put in was not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watched = False
        self.is_finite = True

    def watch(self, gradient: Tensor) -> None:
        """Look at what this rank gives to a reduction, if that is asked for."""
        if self.is_watched:
            self.is_finite = self.is_finite and bool(gradient.isfinite().all())


class Gather:
    """All-gather as torch does it."""

    def __init__(self, sent: Reduced) -> None:
        self._sent = sent

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self._sent.count(ALL_GATHER, input_tensor)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class Scatter(Gather):
    """Reduce-scatter as torch does it; what goes in is this rank's own gradient."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:  # type: ignore[override]
        self._sent.count(REDUCE_SCATTER, input_tensor)
        self._sent.watch(input_tensor)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)


def update_local_rows(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer of DTensors update this rank's rows as plain tensors.

    torch's fused kernels know no sharded SGD. In every step stand-ins that share their memory take the parameters'
    places.
    """
    real: list[list[nn.Parameter]] = []

    def replace(*_: Any) -> None:
        for group in optimizer.param_groups:
            real.append(group["params"])
            group["params"] = [_stand_in(part, optimizer) for part in group["params"]]

    def restore(*_: Any) -> None:
        for group, parts in zip(optimizer.param_groups, real, strict=True):
            for part, other in zip(parts, group["params"], strict=True):
                for name, value in optimizer.state.pop(other, {}).items():
                    if not _is_like(value, other):
                        optimizer.state[part][name] = value
                    elif name not in optimizer.state[part]:
                        # Made in this step, the first.
                        optimizer.state[part][name] = torch.zeros_like(part, memory_format=torch.preserve_format)
                        get_local_rows(optimizer.state[part][name]).copy_(value.detach())
            group["params"] = parts
        real.clear()

    optimizer.register_step_pre_hook(replace)
    optimizer.register_step_post_hook(restore)


def _stand_in(part: nn.Parameter, optimizer: torch.optim.Optimizer) -> nn.Parameter:
    other = nn.Parameter(get_local_rows(part.data))
    if part.grad is not None:
        other.grad = get_local_rows(part.grad)
    if part in optimizer.state:
        optimizer.state[other] = {
            name: get_local_rows(value) if _is_like(value, part) else value
            for name, value in optimizer.state[part].items()
        }
    return other


def _is_like(value: Any, part: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == part.shape and value.ndim > 0


STRATEGY = Fsdp2
