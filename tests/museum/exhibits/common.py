"""What several exhibits change."""

import os
from dataclasses import replace
from typing import Any

from tests.mutants.patching import Patch

DIFFERENT_PARAMETERS = "train: the ranks hold different parameters"
DIFFERENT_TOKENS = "train: the ranks learned from"

SAME_STATE_UNCHECKED = Patch("training.loop:_require_same_state", lambda *_: None)


def _count_as_planned(of, window, step, planned, rate, ranks, *rest):
    tokens, targets = (int(counted) for counted in ranks[:, 5:7].sum(axis=0))
    return of(window, step, replace(planned, num_tokens=tokens, num_targets=targets), rate, ranks, *rest)


TOKENS_UNCHECKED = Patch("training.record.window:Window._make_step_facts", _count_as_planned)


def count_ranks() -> int:
    """Return the number of ranks, as the launcher tells it; 1 in a process that is no rank."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def spread(strategy: str) -> tuple[tuple[str, Any], ...]:
    """Return the params of a comparison whose ranks train so."""
    return (("cells.2proc", {"strategy": strategy, "world_size": 2}),)


def with_mask_as_labels(micro_batches) -> list[Any]:
    """Return the micro-batches with the attention mask in the place of the labels."""
    return [replace(part, labels=(part.labels != -100).long()) for part in micro_batches]
