"""ZeRO-1: the gradient as with ddp; then every rank updates a share, and sends it to all others.

Shares are as even as whole parameters can be: at another number of ranks the largest is taken to be as large against an
even one as it was, and no smaller than the largest parameter.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.strategies.communication import Draws, SpreadStep, ddp

KINDS: tuple[str, ...] = (*ddp.KINDS, "broadcast")
ASSUMPTIONS: tuple[str, ...] = ("Shares of the update stay as uneven as they are, and no parameter is divided.",)


def explain_unknown(options: Mapping[str, Any], exchange: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return None: it takes any number."""
    return None


def compute_step_seconds(step: SpreadStep) -> Draws:
    """Return a step of ddp with the largest share of the update, and the shares sent one after another."""
    return ddp.compute_step_seconds(step) + compute_update_saving(step, step.world_size)


def compute_update_saving(step: SpreadStep, num_shares: int) -> Draws:
    """Return by how much an update in shares is longer than one of all: mostly below 0."""
    sizes = [size for size in step.exchange["share_bytes"] if size]
    whole = sum(sizes)
    largest = max(whole / num_shares * max(sizes) * len(sizes) / whole, float(step.exchange["largest_bytes"]))
    sent = np.zeros_like(step.optimizer)
    for size in [largest] + [(whole - largest) / max(num_shares - 1, 1)] * (num_shares - 1):
        sent = sent + step.link_seconds("broadcast", size, num_shares)
    return step.optimizer * (largest / whole - 1) + sent
