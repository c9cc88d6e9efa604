"""The accuracy of classifiers as tables and sentences, for the page and the markdown alike."""

from tasks.reporting import wording
from tasks.reporting.accuracy import NEAR
from tasks.reporting.results import Results
from tasks.reporting.tables import Table


def best_and_last(results: Results) -> Table | None:
    """Return each cell's best and last accuracy; None where rows have no class."""
    epochs = results.quality.epochs
    if not epochs:
        return None
    rows = []
    for cell in results.cells:
        best = next(one for one in epochs if one.cell == cell.cell and one.is_best)
        last = next(one for one in epochs if one.cell == cell.cell and one.is_last)
        name = best.checkpoint.rpartition("/")[2]
        rows.append([cell.cell, accuracy(best.accuracy), str(best.epoch), accuracy(last.accuracy), name])
    headings = ["Cell", "Best accuracy", "Best epoch", "Last accuracy", "Best checkpoint"]
    return Table("Best and last", headings, rows, num_prose=1)


def reached(results: Results) -> str | None:
    """Return what accuracy the seconds in `times` lead to, in a sentence; None where rows have no class."""
    found = results.quality.time_to_accuracy
    if found is None:
        return None
    which = (
        "the accuracy that params.yaml states"
        if found.is_stated
        else f"within {wording.small_percent(NEAR)} of the rows of where {results.baseline.cell} ended"
    )
    return (
        f"Time to accuracy: until {accuracy(found.target_accuracy)} of the held-out rows were put into the right class "
        f"after an epoch for the first time, {which}."
    )


def times(results: Results) -> Table | None:
    """Return when each cell came to the accuracy; None where rows have no class."""
    found = results.quality.time_to_accuracy
    if found is None:
        return None
    rows = [
        [cell.cell, "never", wording.NOT_AVAILABLE]
        if cell.epoch is None or cell.train_seconds is None
        else [cell.cell, f"{cell.epoch} of {cell.range}", wording.seconds(cell.train_seconds)]
        for cell in found.cells
    ]
    title = f"To an accuracy of {accuracy(found.target_accuracy)}"
    return Table(title, ["Cell", "Reached after epoch", "Seconds to accuracy"], rows)


def accuracy(value: float | None) -> str:
    """Return an accuracy such as `91.2 %`."""
    return wording.NOT_AVAILABLE if value is None else wording.small_percent(value)
