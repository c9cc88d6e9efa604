"""Searches whose trials cannot be compared."""

from typing import Any

from tests.museum.exhibit import show
from tests.mutants.patching import Patch


def _train_longer(of, stage: str, cell: str = "", others: Any = None):
    if others and "segments" in others and "trial-1" in str(others["run"]):
        others = {**others, "segments": others["segments"] + 1}
    return of(stage, cell, others)


def _search(**more) -> tuple[tuple[str, Any], ...]:
    return (("search", {"batch_size": [8], "warmup_steps": [0], **more}),)


EXHIBITS = [
    show(
        "search: trials of other numbers of epochs",
        "Every other trial trains for an epoch more than those that it is compared with.",
        "search: allowed: as many in all trials that are compared", Patch("flows.trials:read_command", _train_longer),
        scenario="search", params=_search(trials=2, rungs=[1, 2]),
    ),
    show(
        "search: schedule begins again in every epoch",
        "The learning rate of a trial falls to nothing in its first epoch, and begins at its peak in the next.",
        "search: by one schedule over",
        Patch(
            "tasks.params.trials:make_train_changes",
            lambda of, *given: of(*given) | {"schedule_span": "segment"},
        ),
        scenario="search", params=_search(trials=1, rungs=[2]),
    ),
]  # fmt: skip
