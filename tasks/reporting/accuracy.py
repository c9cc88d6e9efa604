"""Accuracy on the held-out rows after every epoch."""

from tasks.records.facts import Record
from tasks.records.outputs import Outputs


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
