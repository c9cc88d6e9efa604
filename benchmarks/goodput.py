"""Is the predicted time to quality borne out? The prediction of finished comparisons against their own trained cells.

    make use PRESET=embedded-batches && make compare
    python -m benchmarks.goodput reports/results.json

Takes the results.json of any comparisons with cells of another batch, and writes
benchmarks/results/<date>_<machine>_goodput.{json,md}.
"""

import argparse
import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.results_file import RESULTS, write_results
from tasks.process.wording import (
    format_loss,
    format_optional,
    format_ratio,
    format_ratio_with_interval,
    format_signed_percent,
    format_small_percent,
    format_three_digits,
)
from tasks.records.estimate import Estimate
from tasks.reporting.results import Results, read_results

_TARGET = 0.15
_METHOD = """\
Each line is a cell with another batch, of a comparison that was run whole. Predicted: the measured speed per token /
the tokens that the gradient noise scale of the baseline's own training says are needed. Measured: training seconds of
the baseline until the target held-out loss / the cell's, geometric mean over seeds, the interval over seeds. Doubted:
of cells that go over one of several ranges more often than the baseline does before the next begins."""
_HEADINGS = (
    "comparison", "cell", "batch", "learning rate", "noise scale", "target loss", "per token", "tokens, predicted",
    "tokens, measured", "as soon, predicted", "as soon, measured", "error",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """One cell's prediction against what was measured."""

    comparison: str
    """Name of the comparison."""
    cell: str
    """Name of the cell."""
    batch: int
    """Samples per step."""
    learning_rate: float
    """Peak."""
    noise_scale: float | None
    """Of the comparison, in samples."""
    target_loss: float
    """On the held-out rows."""
    speed_per_token: Estimate
    """Measured."""
    predicted: Estimate
    """How many times as soon."""
    measured: float | None
    """The same, measured; None: not reached."""
    low: float | None
    high: float | None
    data: float | None
    """Tokens needed against the baseline, measured."""
    below: float | None = None
    """What the measured one is below, where the target was not reached."""
    data_above: float | None = None
    """What the tokens needed are above, likewise."""
    doubt: str | None = None
    """What the prediction takes for granted and the cell does not do, as the report says."""

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        return None if self.measured is None else self.predicted.value / self.measured - 1

    @property
    def least_error(self) -> float | None:
        """The error, or what it is at least where the target was not reached; None where nothing is known."""
        ends = self.measured or self.below
        return None if ends is None else self.predicted.value / ends - 1

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the error."""
        return {**dataclasses.asdict(self), "error": self.error}


def list_scores(results: Results) -> list[Score]:
    """Return the cells with another batch whose time to quality was predicted, and not withheld."""
    found = results.time_to_quality
    noise = results.goodput.mean_noise_scale if results.goodput else None
    return [
        Score(
            comparison=results.name, cell=one.cell, batch=one.global_batch_size, learning_rate=one.learning_rate,
            noise_scale=noise, target_loss=found.target_loss, speed_per_token=one.speed_per_token,
            predicted=one.predicted, measured=one.speedup, low=one.low, high=one.high, data=one.data,
            below=one.speedup_below, data_above=one.data_above, doubt=one.prediction_doubt,
        )
        for one in (found.cells[1:] if found else [])
        if found and one.predicted is not None and one.speed_per_token is not None
    ]  # fmt: skip


def summarise(scores: Sequence[Score]) -> str:
    """Return how far off the predictions were, and of how many cells nothing can be said."""
    errors = [one.error for one in scores if one.error is not None]
    refuted = sum(one.error is None and (one.least_error or 0.0) > _TARGET for one in scores)
    missed = (
        f"{len(scores) - len(errors)} of {len(scores)} cells did not come to the target in every seed; {refuted} of "
        f"these predictions are refuted: too high by more than {format_small_percent(_TARGET)}. "
    )
    if not errors:
        return f"{missed}No prediction has a figure to be held against."
    rms = math.sqrt(sum(math.log1p(one) ** 2 for one in errors) / len(errors))
    within = sum(abs(one) <= _TARGET for one in errors)
    return (
        f"{missed}Of {len(errors)} predictions {within} are within {format_small_percent(_TARGET)} of what was "
        f"measured; root mean square of the logarithm of predicted / measured: {rms:.3f}."
    )


def make_row(one: Score) -> list[str]:
    """Return a line of the table."""
    interval = "" if one.low is None or one.high is None else f" ({one.low:.2f} to {one.high:.2f})"
    measured = "not reached" if one.measured is None else f"{format_ratio(one.measured)}{interval}"
    data, error = format_optional(one.data, format_ratio), format_optional(one.error, format_signed_percent)
    if one.below is not None:
        measured = f"{measured}: below {format_ratio(one.below)}"
        data = f"above {format_ratio(one.data_above)}"
        error = f"above {format_signed_percent(one.predicted.value / one.below - 1)}"
    return [
        one.comparison, f"{one.cell}, doubted" if one.doubt else one.cell, str(one.batch), f"{one.learning_rate:.3g}",
        format_optional(one.noise_scale, format_three_digits), format_loss(one.target_loss),
        format_ratio_with_interval(one.speed_per_token),
        format_ratio(one.speed_per_token.value / one.predicted.value), data,
        format_ratio_with_interval(one.predicted), measured, error,
    ]  # fmt: skip


def main() -> None:
    """Score the comparisons and write what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.goodput", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="results.json of comparisons with cells of another batch")
    arguments = parser.parse_args()
    scores = [score for file in arguments.results for score in list_scores(read_results(file))]
    summary = summarise(scores)
    path = write_results(
        "goodput", title="Predicted time to quality against trained cells", method=_METHOD, headings=_HEADINGS,
        rows=[make_row(one) for one in scores], summary=summary, load_before=os.getloadavg()[0],
        found=[one.as_json() for one in scores], folder=RESULTS,
    )  # fmt: skip
    Console().print(f"{summary}\nwritten: {path}")


if __name__ == "__main__":
    main()
