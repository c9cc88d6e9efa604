"""Fully sharded: of every weight, gradient and moment a rank holds some rows, and gathers a layer while it runs.

torch's own `fully_shard`: one unit per layer of the model, and the root for the rest, embedding and head in it, tied or
not. Gradients are summed up where they arise and reduced with the last micro-batch of a step only.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from training.step.clipping import clip_part
from training.step.replica import Replica
from training.step.replicated import AroundReplica
from training.step.shards import Gather, Reduced, Scatter, Shards, describe_units, get_local_rows, update_local_rows
from training.step.statistics import refuse_statistics
from training.step.strategy import STATE, WEIGHTS, Digests, Part, StepResult
from training.step.traffic import ALL_REDUCE
from training.strategies import read_options, refuse
from training.workloads import Workload

OPTIONS = {"reshard_after_forward": True, "offload": ("none", "cpu"), "mixed": ("none", "bf16"), "replicas": 1}
"""reshard_after_forward: whether a layer's weights are given up after its forward and gathered again in the backward;
kept, they are gathered once per micro-batch and take the memory of ZeRO-2 meanwhile.
offload: cpu: weights, gradients and moments wait in the host's memory, where the update is made.
mixed: bf16: with precision bf16 the layers' matrices are gathered as autocast would round them, in half the bytes;
gradients are reduced in fp32, and the root's weights stay fp32.
replicas: how many copies there are, each sharded over world_size / replicas neighbouring ranks: HSDP."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Fsdp2":
    """Return the strategy, on any number of ranks.

    Raises ValueError for replicas that do not share out the ranks; UnfitModelError for what it cannot do: exact mode,
    compiled layers, fp16, weights in bf16 for a forward that is not or by an earlier torch.
    """
    refuse_statistics(model, "the strategy fsdp2")
    options = read_options(OPTIONS, config)
    if ranks.world_size % options["replicas"]:
        raise ValueError(
            f"replicas={options['replicas']} with world_size={ranks.world_size}; allowed: a divisor of world_size"
        )
    mixed = f"mixed: bf16 with precision: {config.precision}"
    refuse("fsdp2", {
        "exact: true": config.exact,
        "compile: true": config.compile,
        "precision: fp16": config.precision == "fp16",
        mixed: options["mixed"] != "none" and config.precision != "bf16",
        f"mixed: bf16 with torch {torch.__version__}": options["mixed"] != "none" and not takes_dtypes_by_weight(),
    })  # fmt: skip
    return Fsdp2(model, workload, config, ranks)


def takes_dtypes_by_weight() -> bool:
    """Return whether torch gathers each weight in a dtype of its own: from 2.15 on."""
    return hasattr(MixedPrecisionPolicy, "param_dtype_override_fn")


class Fsdp2(AroundReplica):
    """Micro-batches are shared out over the ranks; a copy of the state is spread over them, or neighbours, and rank 0
    writes it."""

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        options = read_options(OPTIONS, config)
        self.data_rank, self.data_world_size = ranks.rank, ranks.world_size
        self._ranks = ranks
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
        self.replica = Replica(
            model, workload, config, ranks.device, shard=self._shard, clip=self._clip, stays=self._is_offloaded
        )
        update_local_rows(self.replica.optimizer)
        self._units = [part for part in model.modules() if isinstance(part, FSDPModule)]
        self._root: Any = model

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
                unit.set_all_reduce_hook(self._sent.count_all_reduce)

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
            [alike, self._group], kind, mesh=[list(one) for one in copies], mesh_dim_names=("replicas", "shards")
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
        found = []
        for tensors in (dict(self.module.named_parameters()), self.replica.collect_moments()):
            digest = TensorDigest()
            for name, tensor in self._shards.generate_whole(sorted(tensors.items())):
                digest.add(name, tensor)
            found.append(self._shards.list_copies(self._ranks.gather_text(digest.hex())))
        return Digests(*found)

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, gathered piece by piece; rank 0 keeps them, as a rank of ddp would have them."""
        tied, named = map_tied_names(self.module), self.module.state_dict()
        firsts = ((name, tensor) for name, tensor in named.items() if name not in tied)
        found = {name: self._keep_on_first(whole) for name, whole in self._shards.generate_whole(firsts)}
        weights = {name: found[tied.get(name, name)] for name in named}
        found.clear()
        yield Part(WEIGHTS, weights if self._ranks.is_first else None)
        # Whoever has written them may hold the part still, and the moments are twice as large.
        weights.clear()
        state = self.replica.state()
        # Not the dicts that the optimizer goes on with.
        kept = {index: dict(of_part) for index, of_part in state["optimizer"]["state"].items()}
        moments = [
            ((index, name), value) for index, of_part in kept.items() for name, value in of_part.items()
            if isinstance(value, Tensor)
        ]  # fmt: skip
        for (index, name), whole in self._shards.generate_whole(moments):
            kept[index][name] = self._keep_on_first(whole)
        state["optimizer"]["state"] = kept
        yield Part(STATE, state if self._ranks.is_first else None)

    def _keep_on_first(self, whole: Tensor) -> Tensor:
        """Return it on rank 0, and nothing of it on the others."""
        return whole if self._ranks.is_first else torch.empty(0)

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its rows of it."""
        self.replica.require_fit(weights, state)
        own = self.module.state_dict()
        optimizer = self.replica.optimizer
        places = [part for group in optimizer.param_groups for part in group["params"]]
        moments = {
            index: {name: self._shard_moment(value, places[index]) for name, value in kept.items()}
            for index, kept in state["optimizer"]["state"].items()
        }
        optimizer.load_state_dict({**state["optimizer"], "state": moments})
        torch.set_rng_state(state["rng"])
        restored = self.replica.optimizer.state_dict()["state"]
        for number, before in moments.items():
            for key, saved in before.items():
                found = restored.get(number, {}).get(key)
                if not isinstance(found, Tensor) or not torch.equal(
                    get_local_rows(saved).cpu(), get_local_rows(found).cpu()
                ):
                    raise ValueError(f"{key} of parameter {number} is not what was saved after it was restored")
        with torch.no_grad():
            for name, tensor in own.items():
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
