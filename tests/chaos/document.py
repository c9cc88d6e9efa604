"""The table: for a terminal, and in docs/faults.md between two marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.trial import Part, Trial, failure_rate_bound, median_and_worst
from tests.marked_table import replace_rows

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
_HEADINGS = ("part", "fault", "survived if", "trials", "survived", "seconds lost", "restart", "fails at most", "on")
_BEGIN = "<!-- written by make chaos: begin -->"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A part that was run."""

    part: Part
    trials: Sequence[Trial]
    date: str
    """ISO."""

    @property
    def num_survived(self) -> int:
        """Trials in which all was as it has to be."""
        return sum(trial.survived for trial in self.trials)

    @property
    def cells(self) -> list[str]:
        """One text for each heading."""
        bound = failure_rate_bound(self.trials)
        is_every_point = self.part.num_trials is None and all(trial.seconds_lost is None for trial in self.trials)
        worst = "-" if bound is None else f"{bound:.1%}"
        return [
            self.part.key,
            self.part.fault,
            self.part.survives,
            str(len(self.trials)),
            str(self.num_survived),
            median_and_worst([trial.seconds_lost for trial in self.trials]),
            median_and_worst([trial.restart_seconds for trial in self.trials]),
            "every point" if is_every_point and bound is not None else worst,
            self.date,
        ]


def with_rows(text: str, rows: Sequence[Row], *, order: Sequence[str], machine: str) -> str:
    """Return the document with these rows in it; rows of parts that were not run now stay what they were."""
    cells = {row.part.key: row.cells for row in rows}
    return replace_rows(text, cells, begin=_BEGIN, headings=_HEADINGS, order=order, note=f"Last on {machine}.")
