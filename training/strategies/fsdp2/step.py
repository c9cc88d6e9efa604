"""Fully sharded: of every weight, gradient and moment a rank holds some rows, and gathers a layer while it runs.

torch's own `fully_shard`: one unit per layer of the model, and the root for the rest, embedding and head in it, tied or
not. Gradients are summed up where they arise and reduced with the last micro-batch of a step only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.layers import list_layers
from training.model.weights import TensorDigest, map_tied_names
from training.process.distributed import Ranks
from training.process.torch_private import forget_forward_order
from training.step.optimizer import clip_part, get_local_rows
from training.step.snapshot import STATE, WEIGHTS, Digests, Part, collect_state, list_copies, select_own
from training.step.strategy import StepResult, Strategy, require_combination
from training.step.traffic import ALL_REDUCE
from training.strategies import fill_options
from training.strategies.fsdp2.shards import Gather, Reduced, Scatter, Shards, describe_units, update_local_rows
from training.workloads import Workload


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Fsdp2":
    """Return the strategy, on any number of ranks.

    Raises ValueError for replicas that do not share out the ranks; UnfitModelError for what it does not go with, such
    as weights in bf16 by an earlier torch.
    """
    options = fill_options("fsdp2", config.options)
    if ranks.world_size % options["replicas"]:
        raise ValueError(
            f"replicas={options['replicas']} with world_size={ranks.world_size}; allowed: a divisor of world_size"
        )
    is_early = options["mixed"] != "none" and not takes_dtypes_by_weight()
    require_combination("fsdp2", model, config, ranks, more={f"mixed: bf16 with torch {torch.__version__}": is_early})
    return Fsdp2(model, workload, config, ranks)


def takes_dtypes_by_weight() -> bool:
    """Return whether torch gathers each weight in a dtype of its own: from 2.15 on."""
    return hasattr(MixedPrecisionPolicy, "param_dtype_override_fn")


class Fsdp2(Strategy):
    """Micro-batches are shared out over the ranks; a copy of the state is spread over them, or neighbours, and rank 0
    writes it."""

    has_replica = False

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        options = fill_options("fsdp2", config.options)
        self._shards = Shards(ranks, copies=int(options["replicas"]))
        self._group: Any = ranks.gradient_group
        """Of the ranks that hold one copy."""
        self._max_grad_norm = config.max_grad_norm
        self._reshards: bool = options["reshard_after_forward"]
        self._is_mixed, self._is_offloaded = options["mixed"] == "bf16", options["offload"] == "cpu"
        self._sent = Reduced()
        # Asked while there is a whole model to answer: whether its head is a plain matrix, say.
        model.eval()
        with torch.no_grad():
            workload.loss_sum(model, workload.make_dummy_micro_batch(config.seq_len))
        super().__init__(model, workload, config, ranks)
        self.replica.clip = self._clip
        update_local_rows(self.replica.optimizer)
        self._units = [part for part in model.modules() if isinstance(part, FSDPModule)]
        self._root: Any = model

    def place(self, model: nn.Module) -> Collection[nn.Parameter] | None:
        """Keep this rank's rows, on the host where they wait there; see Strategy."""
        self._shard(model)
        return None if self._is_offloaded else super().place(model)

    def _shard(self, model: nn.Module) -> None:
        mesh = self._make_mesh()
        offload = OffloadPolicy()
        if self._is_offloaded:
            offload = CPUOffloadPolicy(pin_memory=self._ranks.device.type == "cuda")
        mixed = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        if self._is_mixed:
            # What autocast casts to bf16, and that alone: norms and whatever goes into a layer stay as they are.
            mixed = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False,
                param_dtype_override_fn=lambda part: torch.bfloat16 if part.ndim > 1 else part.dtype,
            )  # fmt: skip
        for layer in list_layers(model):
            fully_shard(layer, mesh=mesh, mp_policy=mixed, offload_policy=offload, reshard_after_forward=self._reshards)
        # Its weights stay gathered from forward to backward: the loss multiplies by the head's after the forward.
        fully_shard(model, mesh=mesh, offload_policy=offload, reshard_after_forward=False)
        unit: Any
        for unit in (part for part in model.modules() if isinstance(part, FSDPModule)):
            # A sum, on whatever backend; the factor alone is not taken by gloo, and both hold for one unit only.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_custom_all_gather(Gather(self._sent))
            unit.set_custom_reduce_scatter(Scatter(self._sent))
            if self._shards.number < self._ranks.world_size:
                unit.set_all_reduce_hook(partial(self._sent.count, ALL_REDUCE))

    def _make_mesh(self) -> DeviceMesh:
        """Return the mesh of the ranks, with several replicas of groups of its own."""
        kind, size, number = self._ranks.device.type, self._ranks.world_size, self._shards.number
        if number == size:
            return DeviceMesh.from_group(self._group, kind)
        copies = [range(start, start + number) for start in range(0, size, number)]
        self._group = self._ranks.join_group(copies)
        alike = self._ranks.join_group([range(place, size, number) for place in range(number)])
        self._ranks.counted_groups.extend([self._group, alike])
        return DeviceMesh.from_group(
            [alike, self._group], kind, mesh=[list(copy) for copy in copies], mesh_dim_names=("replicas", "shards")
        )

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = dict(self._sent.counts)
        self._run(micro_batches, weight=1 / max(num_targets, 1))
        loss_sum, grad_norm = self.replica.step(learning_rate)
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=self._sent.since(before))

    def _run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the sum of all ranks' gradients."""
        *earlier, last = micro_batches
        if earlier:
            self._root.set_requires_gradient_sync(False)
            for micro_batch in earlier:
                self.replica.add(self._root, micro_batch, weight=weight)
            self._root.set_requires_gradient_sync(True)
        self.replica.add(self._root, last, weight=weight)

    def _clip(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Scale every rank's rows of the gradient by the norm of the whole."""
        mine = [get_local_rows(part.grad) for part in parameters if part.grad is not None]
        squares = torch.stack(torch._foreach_norm(mine)).double().square().sum().to(self._ranks.device)
        if self._shards.number > 1:
            self._sent.count(ALL_REDUCE, squares)
            dist.all_reduce(squares, group=self._group)
        return clip_part(mine, squares.to(mine[0].device), most=self._max_grad_norm)

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, with weights that are gathered as in a step."""
        total = self.replica.sum_losses(micro_batches)
        for unit in self._units:
            unit.reshard()
            # A backward would follow, torch thinks, and what the next one gathers ahead goes by this order.
            forget_forward_order(unit)
        return total

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing."""
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            self._run(micro_batches, weight=0.0)
            self.replica.forget_gradient()

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether these micro-batches alone do: by what this rank gives to the reduction, which mixes all."""
        self.replica.forget_gradient()
        self._sent.is_watched = self._sent.is_finite = True
        self._run(micro_batches, weight=1 / max(num_targets, 1))
        self._sent.is_watched = False
        self.replica.forget_gradient()
        return self._sent.is_finite

    def digest(self) -> Digests:
        """Return the digest of each copy, which its ranks have gathered; as many as there are if they differ."""
        results = []
        for tensors in (dict(self.module.named_parameters()), self.replica.collect_moments()):
            digest = TensorDigest()
            for name, tensor in self._shards.generate_whole(sorted(tensors.items())):
                digest.add(name, tensor)
            results.append(list_copies(self._ranks.gather_text(digest.hex()), self._shards.number))
        return Digests(*results)

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, gathered piece by piece; rank 0 keeps them, as a rank of ddp would have them."""
        tied, named, is_first = map_tied_names(self.module), self.module.state_dict(), self._ranks.is_first
        firsts = ((name, tensor) for name, tensor in named.items() if name not in tied)
        results = {name: whole for name, whole in self._shards.generate_whole(firsts) if is_first}
        results |= {name: results[first] for name, first in tied.items() if is_first}
        weights = {name: results[name] for name in named if is_first}
        results.clear()
        yield Part(WEIGHTS, weights if is_first else None)
        # Whoever has written them may hold the part still, and the moments are twice as large.
        weights.clear()
        state, groups = self.optimizer.state_dict()["state"], self.replica.named_groups
        names = [name for _, group in groups for name, _ in group]
        moments = [((names[place], key), value) for place, kept in state.items() for key, value in kept.items()]
        whole = ((*where, item) for where, item in self._shards.generate_whole(moments))
        yield Part(STATE, collect_state(self.optimizer, groups, whole, self.replica.state_of_all(), is_kept=is_first))

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its rows of it."""
        self.replica.require_fit(weights, state)
        own = dict(self.module.named_parameters())
        groups = self.replica.named_groups
        self.replica.load_state(select_own(self.optimizer, groups, state, own, cut=self._shard_moment))
        with torch.no_grad():
            for name, tensor in self.module.state_dict().items():
                whole = weights[name]
                get_local_rows(tensor).copy_(
                    self._shards.select_own_rows(whole, tensor) if isinstance(tensor, DTensor) else whole
                )

    def _shard_moment(self, value: Any, parameter: nn.Parameter) -> Any:
        """Return a moment as the optimizer keeps it: the rows of this rank, if the parameter has those only."""
        like: Any = parameter.data
        if not isinstance(value, Tensor) or not isinstance(like, DTensor) or value.shape != like.shape:
            return value
        mine = self._shards.select_own_rows(value, like).to(like.device, copy=True)
        return DTensor.from_local(
            mine, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def describe(self) -> dict[str, Any]:
        """Return `unit_bytes`: what the weights of each unit take on all ranks of a copy, the root's first, and
        `gathered_bytes`, as they are gathered; `num_parameters` in all.
        """
        return describe_units(self._units, self._shards, is_mixed=self._is_mixed)
