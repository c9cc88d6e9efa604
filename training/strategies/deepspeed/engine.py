"""DeepSpeed's engine around a replica: what of it is used, and where it keeps its shares of the state.

None of its kernels in C++ is used, so that nothing is compiled.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.process.heartbeat import StepSection
from training.step.replica import Replica
from training.step.traffic import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Sent, Traffic

SENT = Sent()
"""What this rank put into DeepSpeed's collectives, which go through one place in a process."""

_INPUTS = {
    "all_reduce": (ALL_REDUCE, 0),
    "all_gather_into_tensor": (ALL_GATHER, 1),
    "reduce_scatter_tensor": (REDUCE_SCATTER, 1),
}
"""Method of DeepSpeed's backend -> kind of collective, and which of its arguments goes in."""
_BUCKET_ELEMENTS = 500_000_000
"""As DeepSpeed has it."""


class Fragment(NamedTuple):
    """What this rank has of a flattened parameter."""

    start: int
    """Its first element in the parameter."""
    length: int
    """Elements; 0: this rank has none of it."""
    flat: int
    """Which of the rank's flat tensors it is in."""
    place: int
    """Its first element there."""

    def cut(self, flat: Tensor) -> Tensor:
        """Return it from a tensor that is laid out as its flat tensor, in place."""
        return flat.detach()[self.place : self.place + self.length]

    def select(self, whole: Tensor) -> Tensor:
        """Return the same elements of a whole parameter."""
        return whole.reshape(-1)[self.start : self.start + self.length]


class _Losses(nn.Module):
    """Model and loss in one module, so that the head's weight, by which the loss multiplies, is gathered, too."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.model = replica.module
        self._compute: Callable[..., Tensor] = replica.forward
        self.given: tuple[MicroBatch, float] | None = None
        """Micro-batch and weight; no arguments, which DeepSpeed takes apart."""

    def forward(self) -> Tensor:
        """Return the sum of losses of what is given."""
        assert self.given is not None
        micro_batch, weight = self.given
        return self._compute(self.model, micro_batch, weight=weight)


def _open_package(ranks: Ranks) -> Any:
    """Return the package, whose collectives are counted; raises UnfitModelError where it is missing."""
    # By itself it would take the machine's GPU, for ranks on the CPU as well.
    os.environ.setdefault("DS_ACCELERATOR", ranks.device.type)
    # Asked for even of one process that nobody launched.
    os.environ.setdefault("LOCAL_RANK", "0")
    before = set(os.environ)
    try:
        import deepspeed
        from deepspeed.comm import comm
    except ImportError as error:
        raise UnfitModelError(
            f"strategy: deepspeed needs its package ({error}); install it with: make extras"
        ) from None
    # What it tells torch of GPUs there would be another setting than the other cells'.
    for name in set(os.environ) - before:
        del os.environ[name]
    if comm.cdb is None:
        deepspeed.utils.logger.setLevel(logging.ERROR)
        # On a CPU it would compile an all-reduce, which torch has no record of. Nothing else is compiled, or asked for.
        deepspeed.ops.__compatible_ops__ = {}
        comm.init_distributed(dist_backend=ranks.backend, auto_mpi_discovery=False, verbose=False)
        backend: Any = comm.cdb
        for name, (kind, place) in _INPUTS.items():
            setattr(backend, name, _count(getattr(backend, name), kind, place))
        backend.broadcast = _send_over(ranks.gradient_group, backend.broadcast)
    return deepspeed


def _send_over(group: Any, broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Return the broadcast, over this group where none is named.

    The ranks' own is of the host: its thread would take memory of the first GPU for every rank, to copy a GPU's tensor.
    """

    def call(tensor: Tensor, src: int, **more: Any) -> Any:
        return broadcast(tensor, src, **{**more, "group": more.get("group") or group})

    return call


def _count(collective: Callable[..., Any], kind: str, place: int) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        tensor = arguments[place] if place < len(arguments) else more["input_tensor" if place else "tensor"]
        SENT.count(kind, tensor)
        return collective(*arguments, **more)

    return call


class ZeroEngine:
    """A replica in DeepSpeed's hands. All that runs, reduces or updates is collective."""

    def __init__(self, replica: Replica, config: TrainingConfig, ranks: Ranks, options: Mapping[str, Any]) -> None:
        self.stage: int = options["stage"]
        self._replica, self._ranks = replica, ranks
        self._losses = _Losses(replica)
        num_elements = sum(part.numel() for part in replica.parameters)
        per_bucket = _BUCKET_ELEMENTS if options["bucket_mib"] is None else int(options["bucket_mib"] * 2**18)
        zero: dict[str, Any] = {
            "stage": self.stage,
            # The memory of a whole bucket is taken, however little of it is needed.
            "reduce_bucket_size": max(1, min(per_bucket, num_elements)),
            "stage3_param_persistence_threshold": int(options["whole_below"]),
        }
        if options["offload"] == "cpu":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": ranks.device.type == "cuda"}
        # What is there by now is of parameters, which DeepSpeed puts into flat tensors.
        replica.optimizer.state.clear()
        self._engine, *_ = _open_package(ranks).initialize(
            model=self._losses,
            optimizer=replica.optimizer,
            # Over which group to reduce and gather: that of the gradients.
            mpu=SimpleNamespace(
                get_data_parallel_group=lambda: ranks.gradient_group,
                get_data_parallel_rank=lambda: ranks.rank,
                get_data_parallel_world_size=lambda: ranks.world_size,
                get_model_parallel_group=lambda: None,
                get_model_parallel_rank=lambda: 0,
                get_model_parallel_world_size=lambda: 1,
            ),
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": config.micro_batch_size,
                # How many a step has is said with each; here, whether it may be several.
                "gradient_accumulation_steps": max(
                    1, -(-config.global_batch_size // (config.micro_batch_size * ranks.world_size))
                ),
                "gradient_clipping": config.max_grad_norm,
                "zero_optimization": zero,
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
                "steps_per_print": 2**31,
            },
        )
        self._zero: Any = self._engine.optimizer
        self._reduced = Traffic(0, 0)
        """What the last backward of a step put into the reduction."""

    def forward_backward(self, micro_batch: MicroBatch, *, weight: float, is_last: bool) -> Tensor:
        """Run forward and backward of a micro-batch, with the gradient times weight; return the sum of losses."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._losses.given = micro_batch, weight
        loss_sum: Tensor = self._engine()
        self._replica.on_section(StepSection.BACKWARD)
        kind = REDUCE_SCATTER if self.stage == 3 else ALL_REDUCE
        before = SENT.counts.get(kind, Traffic(0, 0))
        self._engine.backward(loss_sum * weight, scale_wrt_gas=False)
        if is_last:
            after = SENT.counts.get(kind, Traffic(0, 0))
            self._reduced = Traffic(after.number - before.number, after.num_bytes - before.num_bytes)
        return loss_sum.detach()

    def compute_loss(self, micro_batch: MicroBatch, *, weight: float = 1.0) -> Tensor:
        """Return the sum of losses; its backward is nobody's but the caller's."""
        self._losses.given = micro_batch, weight
        loss_sum: Tensor = self._losses()
        return loss_sum

    def optimizer_step(self, learning_rate: float) -> Tensor:
        """Clip and apply the gradient; return its norm, nan if it is not finite: such a one is dropped."""
        for group in self._replica.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        norm = float("nan") if self._zero.overflow else self._engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float32, device=self._ranks.device)

    def send_weights(self) -> None:
        """Gather what an update gathers, which changes nothing."""
        if self.stage < 3:
            self._zero.update_lp_params()
        elif whole := self._zero.persistent_parameters:
            whole[0].all_gather(whole)

    @property
    def flats(self) -> list[Tensor]:
        """This rank's shares of the weights, as the optimizer has them."""
        flats: list[Tensor] = (
            self._zero.single_partition_of_fp32_groups if self.stage < 3 else self._zero.fp32_partitioned_groups_flat
        )
        return flats

    def locate(self) -> dict[nn.Parameter, Fragment]:
        """Return where in `flats` each parameter's fragment of this rank is."""
        fragments: dict[nn.Parameter, Fragment] = {}
        groups = self._zero.bit16_groups if self.stage < 3 else self._zero.fp16_groups
        for number, (group, flat) in enumerate(zip(groups, self.flats, strict=True)):
            place = 0
            for part in group:
                if self.stage < 3:
                    # Parameters of all ranks lie one after another, and a rank has a stretch of that.
                    size, own_start = part.numel(), self._ranks.rank * flat.numel()
                    start = min(max(own_start - place, 0), size)
                    length = min(max(own_start + flat.numel() - place, 0), size) - start
                    fragments[part] = Fragment(start, length, number, max(place - own_start, 0) if length else 0)
                    place += size
                else:
                    size = part.partition_numel()
                    start = min(self._ranks.rank * size, part.ds_numel)
                    fragments[part] = Fragment(start, min(size, part.ds_numel - start), number, place)
                    place += size
        return fragments

    @torch.no_grad()
    def put_weights(self, wholes: Mapping[nn.Parameter, Tensor], fragments: Mapping[nn.Parameter, Fragment]) -> None:
        """Have these weights, whole ones, wherever DeepSpeed keeps one."""
        for part, whole in wholes.items():
            if self.stage < 3:
                part.copy_(whole)
                continue
            shared: Any = part
            fragment = fragments[part]
            fragment.cut(self.flats[fragment.flat]).copy_(fragment.select(whole))
            shared.ds_tensor.data.reshape(-1)[: fragment.length].copy_(fragment.select(whole))
            if part.shape == whole.shape:
                part.copy_(whole)
        if self.stage < 3:
            self._zero.refresh_fp32_params()

    def number_flats(self) -> list[list[int]]:
        """Return which of `flats` belong to each of the optimizer's groups."""
        owners = range(len(self.flats)) if self.stage < 3 else self._zero.sub_group_to_group_id
        groups = range(len(self._replica.optimizer.param_groups))
        return [[flat for flat in range(len(self.flats)) if owners[flat] == group] for group in groups]

    @contextlib.contextmanager
    def lend_flats(self) -> Iterator[None]:
        """Have the optimizer's groups hold `flats`, while inside; in stage 3 they do in an update alone."""
        optimizer, flats = self._replica.optimizer, self.flats
        before = [group["params"] for group in optimizer.param_groups]
        for group, own in zip(optimizer.param_groups, self.number_flats(), strict=True):
            group["params"] = [flats[flat] for flat in own]
        try:
            yield
        finally:
            for group, params in zip(optimizer.param_groups, before, strict=True):
                group["params"] = params

    def describe(self) -> dict[str, Any]:
        """Return `num_buckets` and `bucket_bytes` of one reduction, and `share_bytes`: of each group on a rank.

        In stage 3 also `num_sharded`: how many weights are in shares, `largest_share_bytes` of one of them, and
        `num_whole` and `whole_share_bytes` of those that are whole on every rank.
        """
        results = {
            "num_buckets": self._reduced.number,
            "bucket_bytes": self._reduced.num_bytes,
            "share_bytes": [flat.nbytes for flat in self.flats],
        }
        if self.stage < 3:
            return results
        parts = [part for group in self._zero.fp16_groups for part in group]
        sizes = {part: part.partition_numel() * part.element_size() for part in parts}
        sharded = [size for part, size in sizes.items() if not part.ds_persist]
        return {
            **results,
            "num_sharded": len(sharded),
            "num_whole": len(sizes) - len(sharded),
            "largest_share_bytes": max(sharded, default=0),
            "whole_share_bytes": sum(sizes.values()) - sum(sharded),
        }
