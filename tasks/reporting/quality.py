"""What results.json says of the models on rows that none was trained on."""

from tasks.records.evaluation import EvaluatedSample
from tasks.records.facts import Record
from tasks.records.outputs import Outputs
from tasks.reporting.time_to_loss import TimeToLoss


class EpochAccuracy(Record):
    """One cell after one of its segments."""

    cell: str
    """Name of the cell."""
    range: str
    """The range of the segment."""
    epoch: int
    """The epoch of the segment (1-based)."""
    step: int
    """The last optimizer step up to there (1-based)."""
    train_seconds: float
    """Seconds of optimizer steps up to there, the slowest rank's."""
    train_loss: float
    """Mean training loss of the segment, in nats per sample."""
    loss: float
    """Mean loss on the held-out rows, in nats per sample."""
    accuracy: float
    """Share of the held-out rows that it puts into the right class."""
    accuracy_top5: float | None
    """Share of the rows whose class is among the five that it takes for likeliest; null where that is not counted."""
    checkpoint: str
    """The checkpoint, below the cell's folder."""
    is_best: bool
    """Whether no other checkpoint of the cell is more accurate, and no earlier one as accurate."""
    is_last: bool
    """Whether it is the cell's last."""


class ModelQuality(Record):
    """One model on the held-out rows."""

    model: str
    """base, or the name of the cell that trained it."""
    loss: float
    """Mean loss per label, in nats: per token, or per sample where each has a class."""
    perplexity: float | None
    """exp(loss); null where that is too large for a number, and where no tokens are predicted."""
    accuracy: float | None = None
    """Share of the rows that it puts into the right class; null where rows have none."""
    accuracy_top5: float | None = None
    """Share of the rows whose class is among the five that it takes for likeliest; null where that is not counted."""
    accuracy_tokens: float | None = None
    """Share of the responses' tokens that it takes for likeliest after those before; null where rows have none."""
    num_tokens: int
    """Tokens (or images) counted, each once."""
    checkpoint: str | None
    """The checkpoint that was evaluated; null for the base model."""


class HeldoutCurve(Record):
    """Loss on the held-out rows while one cell trained, in the arithmetic of its training."""

    cell: str
    """Name of the cell."""
    steps: list[int]
    """After which steps of the run (1-based)."""
    losses: list[float]
    """Nats per label; empty where its segments were trained without a look, or before these rows were held out."""


class Quality(Record):
    """What the models are worth on rows that none was trained on."""

    heldout: str
    """The held-out rows."""
    num_rows: int
    """Rows evaluated."""
    seq_len: int
    """Tokens per row at most; longer rows are cut."""
    models: list[ModelQuality]
    """The base model first, then each cell's last checkpoint."""
    samples: list[EvaluatedSample]
    """A few held-out rows, continued by every model."""
    heldout_curves: list[HeldoutCurve] = []
    """Every cell's, where `train.eval_every_steps` asks for one."""
    time_to_loss: TimeToLoss | None = None
    """When each cell's training came to a loss; null in results of an earlier version."""
    epochs: list[EpochAccuracy] = []
    """Every cell after each of its segments, in the order of training; empty where rows have no class."""

    @property
    def is_classified(self) -> bool:
        """Whether the rows have classes."""
        return any(model.accuracy is not None for model in self.models)

    @property
    def has_responses(self) -> bool:
        """Whether the rows are prompts with responses, of which alone the loss is."""
        return any(model.accuracy_tokens is not None for model in self.models)


def list_accuracies(outputs: Outputs) -> list[EpochAccuracy]:
    """Return every cell after each of its segments; none where rows have no class."""
    found = []
    for cell, run in outputs.runs.items():
        evaluated = {(one.range, one.epoch): one for one in outputs.evaluation.epochs.get(cell, [])}
        known = {key: one.accuracy for key, one in evaluated.items() if one.accuracy is not None}
        steps, seconds = 0, 0.0
        for segment in run.segments:
            facts, key = segment.facts, (segment.facts.range, segment.facts.epoch)
            steps, seconds = steps + facts.num_steps, seconds + facts.train_seconds
            if key not in known:
                continue
            found.append(
                EpochAccuracy(
                    cell=cell,
                    range=facts.range,
                    epoch=facts.epoch,
                    step=steps,
                    train_seconds=seconds,
                    train_loss=facts.loss,
                    loss=evaluated[key].loss,
                    accuracy=known[key],
                    accuracy_top5=evaluated[key].accuracy_top5,
                    checkpoint=evaluated[key].checkpoint,
                    # The first of equals: max keeps it.
                    is_best=key == max(known, key=lambda one: known[one]),
                    is_last=segment is run.segments[-1],
                )
            )
    return found
