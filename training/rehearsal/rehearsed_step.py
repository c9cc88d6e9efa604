"""A step of a cell, rehearsed without its device: what one rank holds of memory, and what it asks of device and link.

The strategy's own warm-up runs, which has in memory what a step has: moments, and where a step has several
micro-batches, the gradient of another.
"""

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.data.plan import make_micro_batch, make_segment_plan
from training.process.failure import UnfitModelError
from training.process.heartbeat import StepSection
from training.rehearsal.live_memory import ACTIVATIONS, COMMUNICATION, GRADIENTS, MOMENTS, LiveMemory, Work
from training.rehearsal.pretended_device import Capability, pretend_ranks
from training.strategies import find_strategy
from training.workloads import Workload, find_workload, open_training_rows


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


def rehearse_step(config: TrainingConfig, *, capability: Capability, rank: int = 0) -> RehearsedStep:
    """Return what a step of the rank takes, on a device of that capability.

    Only config.json of the model is read. Compiled layers are rehearsed as those that are not. Raises what building
    the strategy raises.
    """
    if config.options.get("offload", "none") != "none":
        # Host and device are one here, so that what waits on the host would be counted as the card's.
        raise UnfitModelError(
            f"options.offload: {config.options['offload']} cannot be rehearsed; rehearse the cell without, which takes "
            "more of a card"
        )
    workload = find_workload(config.workload)
    micro_batch = _find_largest(workload, config)
    config = dataclasses.replace(config, compile=False)
    _try_outline(workload, config.model_dir)
    memory = LiveMemory()
    with pretend_ranks(config.world_size, rank=rank, capability=capability) as (ranks, fake), memory:
        model = workload.outline_model(config.model_dir)
        num_parameters = sum(part.numel() for part in model.parameters() if part.requires_grad)
        memory.head_width = _find_head_width(model)
        strategy = find_strategy(config.strategy).build(model, workload, config, ranks)
        # Layers of other stages are held by circles of references.
        gc.collect()
        memory.name_weights([*strategy.module.parameters(), *strategy.module.buffers()])
        for part in strategy.module.parameters():
            part.register_post_accumulate_grad_hook(_make_grad_hook(memory))
        # The warm-up begins with its stand-ins for the moments.
        memory.kind = MOMENTS
        strategy.on_section = _make_listener(memory)
        strategy.warm_up(micro_batch.map_tensors(fake.from_tensor))
        return RehearsedStep(
            peak_bytes=dict(memory.peak),
            num_positions=micro_batch.num_positions,
            work=memory.work,
            num_parameters=num_parameters,
        )


def _try_outline(workload: Workload, model_dir: Path) -> None:
    """Raise UnfitModelError, in one line, for a config.json that describes no model of this workload.

    What it takes is then imported, where the tensors of modules are real.
    """
    try:
        with torch.device("meta"):
            workload.outline_model(model_dir)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UnfitModelError(
            f"config.json describes no model that can be built ({reason}); use another model"
        ) from None


def _find_largest(workload: Workload, config: TrainingConfig) -> MicroBatch:
    """Return the largest micro-batch of all segments, on the CPU."""
    found = []
    for segment in config.segments:
        source = open_training_rows(workload, config, segment)
        plan = make_segment_plan(source, config, segment)
        step = plan.step(plan.find_largest_step())
        found.append(make_micro_batch(source, step, 0, seq_len=config.seq_len, seed=(config.seed, 0)))
    return max(found, key=lambda part: part.num_positions)


def _find_head_width(model: Any) -> int | None:
    """Return how many tokens or classes the model tells apart; None where its config does not say."""
    config = getattr(model, "config", None)
    is_causal = getattr(model, "get_output_embeddings", lambda: None)() is not None
    width: int | None = getattr(config, "vocab_size" if is_causal else "num_labels", None)
    return width


def _make_grad_hook(memory: LiveMemory) -> Callable[[Tensor], None]:
    return lambda part: memory.name([part.grad], GRADIENTS)


def _make_listener(memory: LiveMemory) -> Callable[[StepSection], None]:
    def listen(section: StepSection) -> None:
        memory.kind = COMMUNICATION if section == StepSection.COLLECTIVE else ACTIVATIONS
        if section == StepSection.FORWARD:
            memory.work = Work()

    return listen
