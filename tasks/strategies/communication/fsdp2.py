"""Fully sharded: a layer waits for its weights, and its gradient is reduced when the last backward has made it.

On a GPU the next layer's weights are gathered while this one computes: of two that are in turn, the longer counts. On a
CPU all ranks wait for every gather and every reduction. The update is that of a shard.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.strategies.communication import Draws, SpreadStep, explain_uneven

KINDS: tuple[str, ...] = ("all_gather", "reduce_scatter", "all_reduce")
ASSUMPTIONS: tuple[str, ...] = (
    "Units are gathered and reduced whole by all ranks of a replica; the number of replicas stays.",
)


def explain_unknown(options: Mapping[str, Any], exchange: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return that the ranks cannot be shared out over the replicas."""
    return explain_uneven(options, world_size=world_size)


def compute_step_seconds(step: SpreadStep) -> Draws:
    """Return every micro-batch with its gathers, the reductions of the last one, and a shard's part of the update."""
    replicas = int(step.options.get("replicas", 1))
    shards = step.world_size // replicas
    units = list(step.exchange["unit_bytes"])
    gathered = list(step.exchange.get("gathered_bytes", [])) or units
    forward = np.stack([step.link_seconds("all_gather", size, shards) for size in gathered])
    # The root's weights stay gathered, and a layer's where the option says so.
    again = forward[1:] if step.options.get("reshard_after_forward", True) else np.zeros_like(forward[1:])
    reduced = np.stack(
        [
            step.link_seconds("reduce_scatter", size, shards) + step.link_seconds("all_reduce", size / shards, replicas)
            for size in units
        ]
    )
    last, *earlier = step.works
    nothing = np.zeros_like(reduced)
    seconds = _run_micro_batch(step, last, forward, again, reduced)
    for work in earlier:
        seconds = seconds + _run_micro_batch(step, work, forward, again, nothing)
    return np.asarray(seconds + step.optimizer / shards)


def _run_micro_batch(
    step: SpreadStep, work: float, forward: np.ndarray, again: np.ndarray, reduced: np.ndarray
) -> Draws:
    """Return a forward and a backward through the units, the root's exchanges first and last.

    `forward`, `reduced`: (num_units, num_draws) seconds of each unit's exchange, the root's first; `again`: those of
    the layers that are gathered in the backward.
    """
    computing = work * (step.forward + step.backward)
    behind = forward[1:].sum(axis=0) + again.sum(axis=0) + reduced[1:].sum(axis=0)
    alone = forward[0] + reduced[0]
    if not step.overlaps or len(forward) == 1:
        return np.asarray(computing + behind + alone)
    # The first gather has nothing to hide behind, and the last reduction neither.
    first, final = forward[1], reduced[-1]
    hidden = np.maximum(behind - first - final, 0.0)
    slowed = computing + np.minimum(hidden, computing * step.slowdown) * (1 - 1 / step.slowdown)
    return np.asarray(alone + first + final + np.maximum(slowed, hidden))
