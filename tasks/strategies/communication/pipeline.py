"""Pipeline: micro-batches go through the stages, the slowest of which sets the pace; the others fill up and run empty.

With m micro-batches of t seconds, of which a rank has the share c: m t max(c), and beside it t / v of every other
rank's share, with v stages per rank; of equal stages that is the bubble of Narayanan et al. 2021 (2.2). Messages are
waited for on the way in and out, and with 1F1B a rank that has as many micro-batches in flight as there are stages
waits for each one's round trip. Stages are cut anew for every number of ranks, as the ranks cut them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.strategies.communication import Draws, SpreadStep, explain_uneven
from training.model.balance import balance

KINDS: tuple[str, ...] = ("send", "all_reduce", "broadcast")
ASSUMPTIONS: tuple[str, ...] = (
    "The model is cut anew for every number of ranks, by weights to multiply by; the number of replicas stays.",
    "A message takes as long among many ranks as among few.",
)

_SCHEDULE = "schedule"


def explain_unknown(options: Mapping[str, Any], exchange: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return that there are fewer layers than stages, or ranks that cannot be shared out over the replicas."""
    num_layers, replicas = len(exchange["part_costs"]) - 2, int(options.get("replicas", 1))
    most = replicas * (num_layers // _count_stages_per_rank(options))
    if world_size > most:
        return (
            f"Beyond {most} ranks nothing is predicted: the model has {num_layers} layers, and a stage would have none."
        )
    return explain_uneven(options, world_size=world_size)


def compute_step_seconds(step: SpreadStep) -> Draws:
    """Return the passes of the slowest stage, the fill of the others, messages, the gradient's sums, and the update."""
    replicas = int(step.options.get("replicas", 1))
    num_ranks, per_rank = step.world_size // replicas, _count_stages_per_rank(step.options)
    shares, rank_bytes = _cut(step, num_ranks, num_ranks * per_rank)
    micro_batch = step.forward + step.backward
    slowest, others = max(shares), sum(shares) - max(shares)
    passes = micro_batch * (sum(step.works) * slowest + np.mean(step.works) * others / per_rank)
    message = step.link_seconds(
        "send", step.exchange["row_bytes"] * max(step.exchange["most_rows"], 1), step.world_size
    )
    num_hops = num_ranks * per_rank - 1
    num_waited = 2.0 * num_hops
    if step.options.get(_SCHEDULE, "1f1b") == "1f1b":
        num_waited += max(len(step.works) - num_ranks, 0) * 2 * num_hops / num_ranks
    shared = sum(step.link_seconds("send", size, step.world_size) for size in step.exchange["tied_bytes"])
    largest, whole = max(rank_bytes), sum(step.exchange["part_bytes"])
    update = step.optimizer * largest / whole
    if step.options.get("zero1") and replicas > 1:
        update = update / replicas + replicas * step.link_seconds("broadcast", largest / replicas, replicas)
    added = step.link_seconds("all_reduce", largest, replicas)
    return np.asarray(passes + num_waited * message + (shared if num_ranks > 1 else 0.0) + added + update)


def _count_stages_per_rank(options: Mapping[str, Any]) -> int:
    return 2 if options.get(_SCHEDULE) == "interleaved" else 1


def _cut(step: SpreadStep, num_ranks: int, num_stages: int) -> tuple[list[float], list[float]]:
    """Return each rank's share of a micro-batch's work, and the bytes of its parameters."""
    before, *layers, after = step.exchange["part_costs"]
    first, *sizes, last = step.exchange["part_bytes"]
    costs, held = [0.0] * num_ranks, [0.0] * num_ranks
    for stage, numbers in enumerate(balance(layers, num_stages, before=before, after=after)):
        costs[stage % num_ranks] += sum(layers[number] for number in numbers)
        held[stage % num_ranks] += sum(sizes[number] for number in numbers)
    costs[0] += before
    costs[-1] += after
    held[0] += first
    held[-1] += last
    return [cost / sum(costs) for cost in costs], held
