"""reports/search/search.json: what a search tried, and what came of it."""

from typing import ClassVar

from tasks.records.facts import Record
from tasks.records.stage_file import StageFile


class TrialEpoch(Record):
    """One pass of a trial over the range."""

    num_tokens: int
    """What was learned from, in the workload's unit."""
    train_seconds: float
    """Of its optimizer steps."""


class TrialRecord(Record):
    """One configuration, and how far it came."""

    name: str
    """Of its run in the tracker."""
    learning_rate: float
    """Peak."""
    batch_size: int
    """Samples per optimizer step."""
    weight_decay: float
    """Of all but biases and norms."""
    warmup_steps: int
    """Optimizer steps."""
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
    """As a trial's, after the epochs at which both were compared; null where it diverged."""


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
    model: str
    """The base model, in plain words."""
    dataset: str
    """The data set, in plain words."""
    device: str
    """What computed: cpu or cuda."""
    unit: str
    """What is counted: token or image."""
    range: str
    """Rows that were trained on."""
    heldout: str
    """Rows that the loss is of."""
    cell: str
    """The cell that says how a trial is spread."""
    rungs: list[int]
    """Epochs after which trials were compared."""
    eta: int
    """One in so many went on."""
    at_once: int
    """Trials that trained at the same time."""
    seed: int
    """What the configurations follow from."""
    train_seed: int
    """What the trials were trained with."""
    base_loss: float
    """Of the base model on the held-out rows."""
    trials: list[TrialRecord]
    """By their number."""
    best: int
    """Number of the trial that won."""
    runner_up: int | None
    """Number of the trial that came next where the winner was last compared with any; null without one."""
    compared_after: int | None
    """Epochs after which these two were compared; null without a runner-up."""
    repeats: list[RepeatRecord]
    """These two with other seeds."""
    spread: SpreadRecord | None
    """Null where `why_no_spread` says why."""
    why_no_spread: str | None
    """Why there is no epoch by several ranks."""
    patch: str
    """The best parameters as a diff of params.yaml."""
    patch_problem: str | None
    """What the patched params.yaml still lacks; null where it is valid."""
