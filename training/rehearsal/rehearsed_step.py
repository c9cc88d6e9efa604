"""A step of a cell, rehearsed without its device: what one rank holds of memory, and what it asks of device and link.

The strategy's own warm-up runs, which has in memory what a step has: moments, and where a step has several
micro-batches, the gradient of another. The training's own code runs on tensors that have a shape and no memory:
torch's FakeTensorMode, and its process group that exchanges nothing. torch cannot run a backward on fake tensors of
"cuda" where there is no driver, so that they are of "cpu", and whatever would be another kernel, or kept in another
precision, on a GPU is answered here as the GPU would. No number is computed.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future

from training.config import TrainingConfig
from training.model import linear_loss
from training.probing.live_memory import LiveMemory, Work, find_head_width
from training.probing.observed_memory import find_largest_step
from training.process import torch_private
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.step.strategy import find_strategy
from training.strategies import count_shares, find_traits
from training.strategies.ddp import step as ddp
from training.workloads import causal_lm, find_workload

Capability = tuple[int, int]
"""Of a device, as CUDA counts it; (8, 0) is Ampere."""

FIRST_WITH_FLASH: Capability = (8, 0)
"""The first that torch's flash kernels run on."""
_WIDEST_FLASH_HEAD = 256
_16_BIT = (torch.float16, torch.bfloat16)

_IN_FP32 = ("layer_norm", "group_norm", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "rsqrt", "exp", "log", "reciprocal")
"""What autocast computes in fp32 on a GPU, and not on a CPU. Source: torch's documentation, "Autocast Op Reference"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RehearsedStep:
    """What was found of the rank that has most, the first."""

    peak_bytes: dict[str, int]
    """Kind of memory (live_memory.KINDS) -> bytes, when all together were most."""
    num_positions: int
    """Positions, padding included, of the largest micro-batch of all segments; images are one each."""
    work: Work
    """Forward and backward of that micro-batch, the last of a step."""
    num_parameters: int
    """What is trained, on all ranks together."""

    @property
    def total_bytes(self) -> int:
        """Return all kinds together."""
        return sum(self.peak_bytes.values())


def rehearse_step(config: TrainingConfig, *, capability: Capability | None, rank: int = 0) -> RehearsedStep:
    """Return what a step of the rank takes, on a GPU of that capability; None: on the CPU.

    Only config.json of the model is read. Compiled layers are rehearsed as those that are not. Raises what building
    the strategy raises.
    """
    if capability is not None and config.options.get("offload", "none") != "none":
        # Host and device are one here, so that what waits on the host would be counted as the card's.
        raise UnfitModelError(
            f"options.offload: {config.options['offload']} cannot be rehearsed; rehearse the cell without, which takes "
            "more of a card"
        )
    if why := find_traits(config.strategy).no_rehearsal:
        raise UnfitModelError(
            f"strategy: {config.strategy} cannot be rehearsed, since {why}; rehearse the cell with zero1 or fsdp2"
        )
    workload = find_workload(config.workload)
    micro_batch = find_largest_step(workload, config).first
    config = dataclasses.replace(config, compile=False)
    try:
        with torch.device("meta"):
            workload.outline_model(config.model_dir)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UnfitModelError(
            f"config.json describes no model that can be built ({reason}); use another model"
        ) from None
    memory = LiveMemory()
    with pretend_ranks(config.world_size, rank=rank, capability=capability) as (ranks, fake), memory:
        model = workload.outline_model(config.model_dir)
        memory.head_width = find_head_width(model)
        # Of the whole model, before a strategy cuts or shards it; with an adapter, once that is there.
        whole = _count_trained(model)
        strategy = find_strategy(config.strategy).build(model, workload, config, ranks)
        memory.look_at(strategy)
        strategy.warm_up(micro_batch.map_tensors(fake.from_tensor))
        return RehearsedStep(
            peak_bytes=dict(memory.peak),
            num_positions=micro_batch.num_positions,
            work=memory.work,
            num_parameters=_count_trained(model) if config.adapter else whole,
        )


def rehearse_largest_rank(config: TrainingConfig, *, capability: Capability | None) -> RehearsedStep:
    """Return the step of the rank that takes most: the first, where ranks have rows of their own."""
    has_own_rows = count_shares(config.strategy, config.world_size, config.options) == config.world_size
    ranks = range(1 if has_own_rows else config.world_size)
    return max(
        (rehearse_step(config, capability=capability, rank=rank) for rank in ranks), key=lambda step: step.total_bytes
    )


def _count_trained(model: nn.Module) -> int:
    return sum(part.numel() for part in model.parameters() if part.requires_grad)


@contextlib.contextmanager
def pretend_ranks(world_size: int, *, rank: int = 0, capability: Capability | None) -> Iterator[tuple[Ranks, Any]]:
    """Be this rank of so many, each with such a GPU, while inside; yield it, and what makes tensors without memory.

    Without a capability each has CPUs, and runs the kernels of a CPU.
    """
    with contextlib.ExitStack() as stack:
        kernels = [] if capability is None else _list_kernels(capability)
        for owner, name, value in (
            *[
                # Reads which ranks there are.
                (DeviceMesh, "from_group", _without_modes(DeviceMesh.from_group)),
                # Models are built where they are to be.
                (nn.Module, "to", lambda module, *_, **__: module),
                # Draws again what lies outside of the bounds, which nobody can see of numbers that are not there.
                (nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor),
                # There is nobody to exchange with. Buckets built anew are as large as before.
                *torch_private.list_exchanges_of_ddp(),
                # The future of an exchange that is none would hold nothing.
                (ddp, "choose_hook", lambda *_, **__: _hand_back),
            ],
            *kernels,
        ):
            stack.enter_context(_replace(owner, name, value))
        if capability is not None:
            stack.enter_context(_cast_as_on_gpu())
        torch_private.join_fake_group(rank, world_size)
        stack.callback(dist.destroy_process_group)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        fake = stack.enter_context(torch_private.make_fake_mode())
        group: Any = dist.group.WORLD
        device = torch.device("cpu")
        yield Ranks(rank=rank, world_size=world_size, device=device, backend="fake", gradient_group=group), fake


@contextlib.contextmanager
def _replace(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _list_kernels(capability: Capability) -> list[tuple[Any, str, Any]]:
    """Return what a GPU would answer otherwise: owner, name, and what answers instead."""
    has_flash, fakes_in_fp32 = capability >= FIRST_WITH_FLASH, torch_private.fakes_sums_in_fp32()
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    return [
        (linear_loss, "adds_in_fp32", lambda _: fakes_in_fp32),
        (causal_lm, "has_varlen_kernel", lambda device, *, is_16_bit: is_16_bit and has_flash),
        (torch, "is_autocast_enabled", lambda *_: is_enabled("cpu")),
        (torch, "get_autocast_dtype", lambda *_: get_dtype("cpu")),
        (F, "scaled_dot_product_attention", partial(_attend, has_flash=has_flash)),
        (F, "dropout", _drop_out),
    ]


def _without_modes(make: Callable[..., Any]) -> Callable[..., Any]:
    def run(*values: Any, **options: Any) -> Any:
        with torch_private.without_modes():
            return make(*values, **options)

    return run


def _hand_back(group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
    """Exchange a bucket over a link that hands back what it was given."""
    dist.all_reduce(bucket.buffer(), group=group)
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


@contextlib.contextmanager
def _cast_as_on_gpu() -> Iterator[None]:
    """Have autocast keep in fp32, while inside, what it does on a GPU."""
    with torch_private.override_operators() as library:
        for name in _IN_FP32:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, partial(_run_in_fp32, operation), "AutocastCPU")
        yield


def _run_in_fp32(operation: Callable[..., Any], *values: Any, **options: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return operation(
            *(part.float() if isinstance(part, Tensor) and part.dtype in _16_BIT else part for part in values),
            **options,
        )


def _drop_out(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    """Drop out as a GPU does: what is kept for the backward is one byte of each element."""
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    has_flash: bool,
) -> Tensor:
    """Attend by the kernel that torch would choose on the GPU, cuDNN's left out, as the training leaves it out."""
    query, key, value = _cast(query), _cast(key), _cast(value)
    aten, bias = torch.ops.aten, None if attn_mask is None else _make_bias(attn_mask, query)
    with torch.autocast("cpu", enabled=False):
        if bias is None and has_flash and query.dtype in _16_BIT and query.shape[-1] <= _WIDEST_FLASH_HEAD:
            attended = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )
        elif query.shape[1] == key.shape[1]:
            wide = None if bias is None else bias.expand(*query.shape[:3], key.shape[2])
            attended = aten._scaled_dot_product_efficient_attention(
                query, key, value, wide, query.requires_grad, dropout_p, is_causal, scale=scale
            )
        else:
            attended = aten._scaled_dot_product_attention_math(
                query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    tensor: Tensor = attended[0]
    return tensor


def _cast(tensor: Tensor) -> Tensor:
    """Return it as autocast hands it to attention."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor


def _make_bias(mask: Tensor, query: Tensor) -> Tensor:
    """Return what is added to the scores, as torch makes it of a mask."""
    if mask.dtype != torch.bool:
        return mask.to(query.dtype)
    nothing = torch.zeros((), dtype=query.dtype, device=mask.device)
    return torch.where(mask.logical_not(), -torch.inf, nothing).to(query.dtype)
