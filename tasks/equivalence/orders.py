"""The orders in which the ranks of a cell add up a step's micro-batches, and others that are as right.

Apart from what computes an update, which the evaluation runs too: what a strategy deals out is nothing to it.
"""

import numpy as np

from tasks.equivalence.reference.update import Order, order_as_one_rank, shuffle
from tasks.strategies import count_shares
from training.config import TrainingConfig
from training.data.plan import StepPlan


def make_rank_order(config: TrainingConfig) -> Order:
    """Return the order of the config's ranks: each adds up its share, then the shares are added, in rank order.

    In exact mode there is one sum only. Each micro-batch is in the order exactly once, whatever the plan deals out.
    """
    num_shares = count_shares(config.strategy, config.world_size, config.options)

    def order(step: StepPlan, number: int) -> list[list[int]]:
        if config.exact:
            return order_as_one_rank(step, number)
        left = set(range(len(step.micro_batches)))
        groups: list[list[int]] = []
        for share in range(num_shares):
            groups.append([])
            for index in step.select_for_rank(share, num_shares):
                if index in left:
                    left.remove(index)
                    groups[-1].append(index)
        groups[-1] += sorted(left)
        return [group for group in groups if group]

    return order


def make_other_orders(config: TrainingConfig) -> list[Order]:
    """Return orders that are as right as the ranks'; what they give differs by rounding alone.

    Where gradients are exchanged in 16 bit each rank's are rounded, so that what a rank adds up stays together.
    """
    if config.options.get("gradient_hook", "none") == "none":
        return [order_as_one_rank, shuffle]
    ranks = make_rank_order(config)
    return [
        lambda step, number: [group[::-1] for group in reversed(ranks(step, number))],
        lambda step, number: [
            np.random.default_rng([number, rank]).permutation(group).tolist()
            for rank, group in enumerate(ranks(step, number))
        ],
    ]
