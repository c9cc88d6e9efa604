"""DDP: buckets are all-reduced one after another, each as soon as its last gradient is ready and the link is free.

What is not over when the backward is, is exposed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.strategies.communication import Draws, LastBackward, SpreadStep

KINDS: tuple[str, ...] = ("all_reduce",)
ASSUMPTIONS: tuple[str, ...] = ()


def explain_unknown(options: Mapping[str, Any], exchange: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return None: it takes any number."""
    return None


def compute_step_seconds(step: SpreadStep) -> Draws:
    """Return passes, the exchange beside the last backward, and an update that every rank makes of all."""
    return step.earlier + step.works[0] * step.forward + compute_exchange_seconds(step.last) + step.optimizer


def compute_exchange_seconds(last: LastBackward) -> Draws:
    """Return when the backward is over and the last bucket through."""
    now = through = np.zeros_like(last.seconds)
    done = 0.0
    for bucket in last.buckets:
        now = _advance_computing(last, now, through, (bucket.ready - done) * last.seconds) + last.wrapper_seconds
        through = np.maximum(now, through) + last.link_seconds(bucket.num_bytes)
        done = bucket.ready
    return np.maximum(_advance_computing(last, now, through, (1 - done) * last.seconds), through)


def _advance_computing(last: LastBackward, now: Draws, through: Draws, work: Draws) -> Draws:
    """Return when so many seconds of computing are done; until the link is through it goes slower."""
    slowed = np.minimum(work * last.slowdown, np.maximum(through - now, 0.0))
    return np.asarray(now + slowed + work - slowed / last.slowdown)
