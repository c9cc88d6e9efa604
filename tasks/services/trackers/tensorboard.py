"""TensorBoard: a folder per comparison in tensorboard/, in it one per cell, each with one file of events.

A file has every step once, in order, however often its cell was stopped: what is in it is read before more is added,
and what came late is put in its place by writing the file anew.
"""

import io
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.services.tracked import Figures, Point, PublishedModel, Report, TrackedComparison
from training.process.files import replace_file

PACKAGE = "tensorboard"

_FILE = "events.out.tfevents.ddp-compare"
"""TensorBoard looks for files with `tfevents` in their names."""
_DT_STRING = 7
_FACTS = "facts"
"""Title of what is known before the training."""


def choose_uri(asked: str | None) -> str:
    """Return tensorboard/ in this folder; `tracking.uri` is MLflow's."""
    return str(Path.cwd() / "tensorboard")


def register_model(published: PublishedModel, *, experiment: str, uri: str) -> bool:
    """Return False: what is published is registered in MLflow alone."""
    return False


def open_runs(comparison: TrackedComparison, *, uri: str) -> "_Runs":
    """Return the comparison's runs in the folder."""
    return _Runs(comparison, Path(uri) / f"{comparison.name}-{comparison.digest[:8]}")


@dataclass
class _CellRun:
    """One cell's run: its file of events."""

    file: Path
    points: dict[tuple[bool, int], Point] = field(default_factory=dict)
    """By their places."""
    figures: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """What stands beside the curves, in Markdown, by title."""

    def set_status(self, status: str) -> None:
        """Do nothing: TensorBoard knows no status."""

    def send(self, points: Iterable[Point]) -> int:
        missing = {point.place: point for point in points if point.place not in self.points}
        if not missing:
            return 0
        is_next = not self.figures and min(missing) > max(self.points, default=(False, 0))
        self.points = dict(sorted({**self.points, **missing}.items()))
        if is_next and self.file.is_file():
            with self.file.open("ab") as events:
                events.write(_encode(_make_event(point) for _, point in sorted(missing.items())))
        else:
            self.write()
        return sum(len(point.values) for point in missing.values())

    def write(self) -> None:
        """Write all that is known, in order, unless the file has these very bytes."""
        texts = {title: _make_text_event(title, text) for title, text in self.texts.items()}
        # First what is known before the training, so that steps can be added at the end while it runs.
        from tensorboard.compat.proto.event_pb2 import Event

        events = [Event(file_version="brain.Event:2"), texts.pop(_FACTS), *map(_make_event, self.points.values())]
        if self.figures:
            ended_at = max((point.timestamp_ms for point in self.points.values()), default=0)
            events.append(_make_event(Point(0, ended_at, self.figures)))
        content = _encode([*events, *texts.values()])
        if self.file.is_file() and self.file.read_bytes() == content:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(self.file) as beside:
            beside.write_bytes(content)


class _Runs:
    """The runs of one comparison."""

    def __init__(self, comparison: TrackedComparison, folder: Path) -> None:
        self._comparison = comparison
        self._folder = folder
        self._cells: dict[str, _CellRun] = {}

    def open_cell(self, cell: str, facts: Mapping[str, str]) -> _CellRun:
        """Return the cell's run with what its file has; what a kill left half-written at its end goes."""
        run = self._cells[cell] = self._open(cell, facts)
        return run

    def _open(self, folder: str, facts: Mapping[str, str]) -> _CellRun:
        run = _read(self._folder / folder / _FILE)
        run.texts[_FACTS] = _make_table(facts)
        run.write()
        return run

    def withdraw(self, figures: Figures) -> None:
        """Remove all runs of the comparison if one shows a final figure that is not among `figures`."""
        for file in self._folder.rglob(_FILE):
            cell = None if file.parent == self._folder else file.parent.name
            if not _read(file).figures.keys() <= figures.get(cell, {}).keys():
                shutil.rmtree(self._folder)
                return

    def send_report(self, report: Report) -> int:
        """Give each cell's run its figures and gates, and the comparison's the report as text."""
        own = self._open("", self._comparison.facts)
        if "report.md" in report.files:
            own.texts["report"] = report.files["report.md"].read_text(encoding="utf-8")
        sent = 0
        runs: list[tuple[str | None, _CellRun]] = [(None, own), *self._cells.items()]
        for cell, run in runs:
            figures = report.figures.get(cell, {})
            sent += sum(_to_float32(value) != run.figures.get(name) for name, value in figures.items())
            run.figures = {name: _to_float32(value) for name, value in figures.items()}
            run.texts["gates"] = _make_table(report.tags.get(cell, {}))
            run.write()
        return sent


def _to_float32(value: float) -> float:
    """Return the value as TensorBoard keeps it."""
    import numpy as np

    return float(np.float32(value))


def _make_table(facts: Mapping[str, str]) -> str:
    """Return a table in Markdown, which TensorBoard shows as one."""
    cells = (f"| {key} | {value} |".replace("\n", " ") for key, value in facts.items())
    return "\n".join(["| | |", "|---|---|", *cells])


def _make_event(point: Point) -> Any:
    """Return one event with all values of a point: a kill leaves all of them or none."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=key, simple_value=value) for key, value in point.values.items()]
    return Event(wall_time=point.timestamp_ms / 1000, step=point.step, summary=Summary(value=values))


def _make_text_event(title: str, text: str) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=_DT_STRING, string_val=[text.encode()])
    return Event(summary=Summary(value=[Summary.Value(tag=title, metadata=metadata, tensor=tensor)]))


def _encode(events: Iterable[Any]) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    for event in events:
        writer.write(event.SerializeToString(deterministic=True))
    return content.getvalue()


def _read(file: Path) -> _CellRun:
    """Return what a file of events has, up to where it is whole; nothing where there is no file."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    run = _CellRun(file)
    for event in LegacyEventFileLoader(str(file)).Load() if file.is_file() else ():
        values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        run.texts |= {value.tag: value.tensor.string_val[0].decode() for value in event.summary.value if not values}
        if any(name.startswith("final/") for name in values):
            run.figures |= values
        elif values:
            point = Point(event.step, round(event.wall_time * 1000), values)
            run.points[point.place] = point
    return run
