"""TensorBoard: a folder per comparison in tensorboard/, in it one per cell, each with one file of events.

While a cell trains, its steps are added to a file as they come; when it ends, and with the report, every run is written
as a whole, in order, from what the stages left on disk. A file's name has the digest of what it shows.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.services.tracked import Figures, Point, Report, TrackedComparison, find_checkout
from training.process.files import digest_json

PACKAGE = "tensorboard"

_BEING_WRITTEN = Path(".work/tensorboard")
"""A file moves from here to its run when it is whole."""


def choose_uri(asked: str | None) -> str:
    """Return tensorboard/ in this folder; `tracking.uri` is MLflow's."""
    return str(find_checkout() / "tensorboard")


def open_runs(comparison: TrackedComparison, *, uri: str) -> "_Runs":
    """Return the comparison's runs in the folder."""
    return _Runs(comparison, Path(uri) / f"{comparison.name}-{comparison.digest[:8]}")


@dataclass
class _Run:
    """What there is to show of a cell, or of the comparison."""

    folder: Path
    facts: Mapping[str, str]
    points: dict[tuple[bool, int], Point] = field(default_factory=dict)
    """By their places."""
    writer: Any = None
    """Of the file that grows while the cell trains."""

    def set_status(self, status: str) -> None:
        """Begin a file that grows; at its end write all that is known in its place."""
        if status == "RUNNING":
            self.writer = _open_writer(self.folder)
        elif self.writer is not None:
            self.writer.close()
            self.writer = None
            self.write({}, {"facts": _make_table(self.facts)})

    def send(self, points: Iterable[Point]) -> int:
        missing = {point.place: point for point in points if point.place not in self.points}
        self.points |= missing
        if self.writer is None:
            return 0
        for point in missing.values():
            self.writer.add_event(_make_event(point))
        self.writer.flush()
        return sum(len(point.values) for point in missing.values())

    def write(self, figures: Mapping[str, float], texts: Mapping[str, str]) -> int:
        """Have all that is known in one file, and no other; return the number of values written, 0 if it is there."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        points = [point for _, point in sorted(self.points.items())]
        ended_at = max((point.timestamp_ms for point in points), default=0)
        if figures:
            points.append(Point(0, ended_at, dict(figures)))
        digest = digest_json([[point.step, point.timestamp_ms, point.values] for point in points] + [dict(texts)])[:12]
        files = [file for file in self.folder.glob("*tfevents*") if not file.name.endswith(digest)]
        if not list(self.folder.glob(f"*.{digest}")):
            shutil.rmtree(_BEING_WRITTEN, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            writer = _open_writer(_BEING_WRITTEN, suffix=f".{digest}")
            for point in points:
                writer.add_event(_make_event(point))
            for title, text in texts.items():
                writer.add_event(_make_event(Point(0, ended_at, {}), text_pb(title, text)))
            writer.close()
            (whole,) = _BEING_WRITTEN.iterdir()
            shutil.move(whole, self.folder)
        elif not files:
            return 0
        for file in files:
            file.unlink()
        return sum(len(point.values) for point in points)


class _Runs:
    """The runs of one comparison."""

    def __init__(self, comparison: TrackedComparison, folder: Path) -> None:
        self._comparison = comparison
        self._folder = folder
        self._cells: dict[str | None, _Run] = {}

    def open_cell(self, cell: str, facts: Mapping[str, str]) -> _Run:
        """Return what is gathered of the cell."""
        run = self._cells[cell] = _Run(self._folder / cell, facts)
        return run

    def withdraw(self, figures: Figures) -> None:
        """Do nothing: `send_report` leaves no run that shows anything else than what it is given."""

    def send_report(self, report: Report) -> int:
        """Write each cell's run with its figures and gates, and the comparison's with the report as text."""
        sent = 0
        for cell, run in {**self._cells, None: _Run(self._folder, self._comparison.facts)}.items():
            texts = {"facts": _make_table(run.facts), "gates": _make_table(report.tags.get(cell, {}))}
            if cell is None and "report.md" in report.files:
                texts["report"] = report.files["report.md"].read_text(encoding="utf-8")
            sent += run.write(report.figures.get(cell, {}), texts)
        return sent


def _open_writer(folder: Path, *, suffix: str = "") -> Any:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(str(folder), filename_suffix=suffix)


def _make_table(facts: Mapping[str, str]) -> str:
    """Return a table in Markdown, which TensorBoard shows as one."""
    cells = (f"| {key} | {value} |".replace("\n", " ") for key, value in facts.items())
    return "\n".join(["| | |", "|---|---|", *cells])


def _make_event(point: Point, summary: Any = None) -> Any:
    """Return one event with all values of a point, or with this summary: a kill leaves all of them or none."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=key, simple_value=value) for key, value in point.values.items()]
    return Event(wall_time=point.timestamp_ms / 1000, step=point.step, summary=summary or Summary(value=values))
