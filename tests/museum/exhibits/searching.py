"""Searches whose trials cannot be compared."""

from typing import Any

from tests.museum.exhibit import show
from tests.mutants.patching import Patch


def _train_longer(of, trial, epochs: int, slot, devices) -> None:
    """Ask for one epoch more of every other trial, in the folder of as many as the others have."""
    run = trial.locate_run(epochs)
    more = int(trial.name[-1]) % 2
    object.__setattr__(trial, "locate_run", lambda _: run)
    of(trial, epochs + more, slot, devices)
    object.__delattr__(trial, "locate_run")


def _search(**more) -> tuple[tuple[str, Any], ...]:
    return (("search", {"batch_size": [8], "warmup_steps": [0], **more}),)


EXHIBITS = [
    show(
        "search: trials of other numbers of epochs",
        "Every other trial trains for an epoch more than those that it is compared with.",
        "search: allowed: as many in all trials that are compared", Patch("flows.trials:Trial.start", _train_longer),
        scenario="search", params=_search(trials=2, rungs=[1, 2]),
    ),
    show(
        "search: schedule begins again in every epoch",
        "The learning rate of a trial falls to nothing in its first epoch, and begins at its peak in the next.",
        "search: by one schedule over",
        Patch(
            "tasks.params.editing:make_train_changes",
            lambda of, *given: of(*given) | {"schedule_span": "segment"},
        ),
        scenario="search", params=_search(trials=1, rungs=[2]),
    ),
]  # fmt: skip
