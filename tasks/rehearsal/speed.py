"""How fast a rehearsed step could be: a roofline with a range of efficiencies, modelled and never measured.

Every operation takes as long as its arithmetic or its memory traffic at a share of the card's peak, whichever is
longer; the host launches one kernel after another meanwhile. Source: Williams et al. 2009, Roofline.
"""

from dataclasses import dataclass

from tasks.rehearsal.cards import Card
from training.probing.live_memory import Work

PRODUCTS = (0.40, 0.75)
"""Share of the dense peak that matrix products and attention reach: at least, at most."""
BANDWIDTH = (0.60, 0.90)
"""Share of the memory's bandwidth that streaming kernels reach."""
LINK = (0.40, 0.80)
"""Share of the link's bandwidth that collectives reach; at least: and nothing is hidden behind the backward."""
LAUNCH_SECONDS = (10e-6, 4e-6)
"""Of the host per kernel: at most, at least; slow before fast, as above."""
ASSUMED = (
    f"products at {PRODUCTS[0]:.0%} to {PRODUCTS[1]:.0%} of the dense peak, memory at {BANDWIDTH[0]:.0%} to "
    f"{BANDWIDTH[1]:.0%} and link at {LINK[0]:.0%} to {LINK[1]:.0%} of its bandwidth, {LAUNCH_SECONDS[1] * 1e6:g} to "
    f"{LAUNCH_SECONDS[0] * 1e6:g} us of the host per kernel"
)
_UPDATE_BYTES = 44
"""Per parameter: AdamW reads four numbers and writes three, the norm and the clipping read two and write one, and
gradients are forgotten."""
_BACKWARD_SHARE = 2 / 3
_PER_MICRO_BATCH = ("_allgather_base_",)
"""Collectives that every micro-batch makes; all others are made once per step."""


@dataclass(frozen=True, kw_only=True)
class StepLoad:
    """A step of a cell, as its busiest rank has it on average."""

    work: Work
    """One micro-batch, forward and backward, of `positions_rehearsed` positions."""
    positions_rehearsed: int
    positions: float
    """Of all micro-batches of the rank."""
    num_micro_batches: float
    """Of the rank."""
    tokens: float
    """What the step counts, all ranks."""
    num_updated: float
    """Parameters that the rank updates."""
    world_size: int
    precision: str
    is_modelled: bool
    """Whether ranks work on rows of their own: how long stages of a pipeline wait for each other is not modelled."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """From low to high."""

    low: float
    high: float


def model_tokens_per_second(load: StepLoad, card: Card) -> Range | None:
    """Return tokens per second of all ranks; None where the card's speed at this precision or its link is not known."""
    seconds = _list_step_seconds(load, card)
    return None if seconds is None else Range(low=load.tokens / max(seconds), high=load.tokens / min(seconds))


def model_speedup(load: StepLoad, baseline: StepLoad, card: Card) -> Range | None:
    """Return how many times as fast as the baseline, both with the same efficiency of the card."""
    mine, theirs = _list_step_seconds(load, card), _list_step_seconds(baseline, card)
    if mine is None or theirs is None:
        return None
    more = load.tokens / baseline.tokens
    ratios = [more * other / own for own, other in zip(mine, theirs, strict=True)]
    return Range(low=min(ratios), high=max(ratios))


def _list_step_seconds(load: StepLoad, card: Card) -> list[float] | None:
    """Return the seconds of a step with each pair of efficiencies, of the card and of the link."""
    tflops, slow, link = card.find_tflops(load.precision), card.find_tflops("fp32"), card.link_gb_per_second
    if not load.is_modelled or tflops is None or (load.world_size > 1 and link is None):
        return None
    results, work = [], load.work
    hops = (load.world_size - 1) / load.world_size
    crossing = sum(
        (load.num_micro_batches if kind in _PER_MICRO_BATCH else 1) * (2 if kind == "allreduce_" else 1) * num_bytes
        for kind, num_bytes in work.exchanged.items()
    )
    for product, stream, launch in zip(PRODUCTS, BANDWIDTH, LAUNCH_SECONDS, strict=True):
        bytes_per_second, flops_per_second = card.gb_per_second * 1e9 * stream, tflops * 1e12 * product
        in_fp32 = flops_per_second if slow is None else min(flops_per_second, slow * 1e12 * PRODUCTS[1])
        device = work.other_bytes / bytes_per_second + sum(
            number * max(flops / (flops_per_second if is_16_bit else in_fp32), num_bytes / bytes_per_second)
            for (flops, num_bytes, is_16_bit), number in work.products.items()
        )
        micro_batch = max(device, work.num_kernels * launch)
        busy = micro_batch * load.positions / load.positions_rehearsed
        busy += load.num_updated * _UPDATE_BYTES / bytes_per_second
        for efficiency, hidden in zip(LINK, (0.0, _BACKWARD_SHARE * micro_batch), strict=True):
            exchange = hops * crossing / (link * 1e9 * efficiency) if link else 0.0
            results.append(busy + max(0.0, exchange - hidden))
    return results
