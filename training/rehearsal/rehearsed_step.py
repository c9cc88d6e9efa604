"""A step of a cell, rehearsed without its device: what one rank holds of memory, and what it asks of device and link.

The strategy's own warm-up runs, which has in memory what a step has: moments, and where a step has several
micro-batches, the gradient of another.
"""

import dataclasses

import torch
from torch import nn

from training.config import TrainingConfig
from training.probing.live_memory import LiveMemory, Work, find_head_width
from training.probing.observed_memory import find_largest_step
from training.process.failure import UnfitModelError
from training.rehearsal.pretended_device import Capability, pretend_ranks
from training.strategies import find_strategy
from training.workloads import find_workload


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
    if not getattr(find_strategy(config.strategy), "REHEARSES", True):
        raise UnfitModelError(
            f"strategy: {config.strategy} cannot be rehearsed, since its engine asks what is in its tensors; rehearse "
            "the cell with zero1 or fsdp2"
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


def _count_trained(model: nn.Module) -> int:
    return sum(part.numel() for part in model.parameters() if part.requires_grad)
