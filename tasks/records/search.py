"""reports/search/search.json: what a search tried, and what came of it."""

from typing import ClassVar

from tasks.params.search import Configuration, SearchParams
from tasks.records.facts import Record
from tasks.records.stage_file import StageFile


class TrialEpoch(Record):
    """One pass of a trial over the range."""

    num_tokens: int
    """What was learned from, in the workload's unit."""
    train_seconds: float
    """Of its optimizer steps."""
    num_others: int | None = None
    """Most other trials that trained on its machine meanwhile; null where that is not known."""


class TrialRecord(Record):
    """One configuration, and how far it came."""

    name: str
    """Of its run in the tracker."""
    drawn: Configuration
    """What it was trained with."""
    losses: dict[int, float]
    """Epochs of a rung -> loss on the held-out rows after them, nats per label."""
    epochs: list[TrialEpoch]
    """In the order of training."""
    problem: str | None = None
    """Why it ended before its rung did; null where it did not."""


class RepeatRecord(Record):
    """A configuration trained with another seed."""

    trial: int
    """Number of the trial whose configuration it has."""
    seed: int
    """`train.seed`."""
    loss: float | None
    """After the epochs at which best and runner-up were compared; null where it diverged."""


class SpreadRecord(Record):
    """The best configuration trained for an epoch by several ranks, with nothing beside it."""

    cell: str
    """The cell of params.yaml that says how."""
    world_size: int
    """Ranks."""
    epoch: TrialEpoch
    """What the epoch came to."""


class SearchFile(StageFile):
    """The whole search."""

    NAME: ClassVar[str] = "search.json"

    name: str
    """Of the comparison."""
    about: str
    """Base model, rows and device, in one sentence."""
    heldout: str
    """Rows that the loss is of."""
    unit: str
    """What is counted: token or image."""
    asked: SearchParams
    """The section `search` of params.yaml."""
    train_seed: int
    """What the trials were trained with."""
    base_loss: float
    """Of the base model on the held-out rows."""
    trials: list[TrialRecord]
    """By their number."""
    best: int
    """Number of the trial that won."""
    runner_up: int | None
    """Number of the trial that came next where the best was last compared with any; null without one."""
    compared_after: int
    """Epochs after which these two were compared."""
    repeats: list[RepeatRecord]
    """These two with other seeds."""
    spread: SpreadRecord | str
    """An epoch by several ranks, or why there is none."""
    patch: str
    """The best parameters as a diff of params.yaml."""
