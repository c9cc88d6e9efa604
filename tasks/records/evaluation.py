"""data/evaluation/evaluation.json: what the models make of rows that none was trained on."""

import math
from typing import Any, ClassVar

from tasks.records.facts import Record
from tasks.records.stage_file import StageFile


class Figures(Record):
    """What a model makes of the held-out rows."""

    loss: float
    """Mean loss in nats per label."""
    perplexity: float | None = None
    """e to the loss; null where rows have classes."""
    accuracy: float | None = None
    """Share of the rows whose class is its first choice; null where rows have none."""
    accuracy_top5: float | None = None
    """Share of those whose class is among its first five; null where that says nothing."""
    accuracy_tokens: float | None = None
    """Share of the responses' tokens that are its first choice after those before; null where rows have none."""
    num_tokens: int
    """What was evaluated, in the workload's unit."""
    num_targets: int | None = None
    """Labels of it, where rows have classes or responses."""
    parameter_checksum: str
    """Checksum of the weights that were evaluated."""
    rows_digest: str = ""
    """sha256 of the rows that they were evaluated on; empty in a file of an earlier version."""


class Continuation(Record):
    """How a model goes on with a row."""

    row_id: int
    """Position of the row in the data set."""
    prompt: str
    """What it was given."""
    reference: str
    """How the row goes on."""
    continuation: str
    """How the model goes on."""


class FoundFile(Figures, StageFile):
    """What was found of one model, as it is kept for the next run."""

    NAME: ClassVar[str] = "found.json"

    samples: list[Continuation] = []
    """Rows that it continued, if it can write."""

    def figures(self) -> dict[str, Any]:
        """Return what is not of this file alone."""
        return {name: getattr(self, name) for name in Figures.model_fields}


class EvaluatedModel(Figures):
    """One model's figures."""

    checkpoint: str | None = None
    """Path of its weights below the folder of the run; null for the base model."""


class EvaluatedEpoch(Figures):
    """One cell's figures after one segment."""

    range: str
    """The range of the segment."""
    epoch: int
    """Its epoch, from 1."""
    checkpoint: str
    """Path of its weights below the folder of the run."""


class EvaluatedSample(Record):
    """One row that every model continued."""

    row_id: int
    """Position of the row in the data set."""
    prompt: str
    """What they were given."""
    reference: str
    """How the row goes on."""
    continuations: dict[str, str]
    """Model -> how it goes on."""


class EvaluationFile(StageFile):
    """What was found of all models."""

    NAME: ClassVar[str] = "evaluation.json"

    heldout: str
    """The rows."""
    num_rows: int
    """How many of them."""
    num_tokens: int = 0
    """What they count, in the workload's unit."""
    seq_len: int
    """Tokens of a row at most; longer rows are cut."""
    precision: str = "fp32"
    """Arithmetic of the evaluation, whatever the training's."""
    num_trained: int | None = None
    """Numbers that are trained, where those of an adapter are; null: all parameters."""
    models: dict[str, EvaluatedModel]
    """`base` or the name of a cell -> its figures."""
    samples: list[EvaluatedSample] = []
    """Rows that all models continued, if they can write."""
    epochs: dict[str, list[EvaluatedEpoch]] = {}
    """Cell -> figures after each of its segments, where rows have classes."""


def compute_perplexity(loss: float) -> float | None:
    """Return exp(loss), or None where that is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return None
