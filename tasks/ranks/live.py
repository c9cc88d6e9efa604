"""What a running training says, as it says it: its event stream, and progress for the person who waits."""

import json
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10.0


class EventReader:
    """The events of a JSON-lines file that another process appends to, each given once and only when whole."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._position = 0
        self.last: dict[str, Any] = {}
        """The newest event that was read; empty before the first."""

    def read_new(self) -> list[dict[str, Any]]:
        """Return the events that came since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                block = file.read()
        except FileNotFoundError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._position += len(whole)
        events = [json.loads(line) for line in whole.splitlines()]
        if events:
            self.last = events[-1]
        return events


class TrainingProgress:
    """A progress bar on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, cell: str, *, total_steps: int, unit: str = "token") -> None:
        self._cell = cell
        self._total_steps = total_steps
        self._unit = unit
        self._done = 0
        self._is_terminal = sys.stderr.isatty()
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._is_terminal,
        )
        self._bar = self._progress.add_task(f"{cell}: starting", total=total_steps, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, events: Iterable[dict[str, Any]]) -> None:
        """Take new events into the display."""
        last_step = None
        for event in events:
            if event["event"] == "step":
                last_step = event
                self._done += 1
            elif event["event"] == "segment_started":
                self._done += event.get("resumed_at_step") or 0
            elif event["event"] == "segment_finished":
                _log.info(
                    "%s %s epoch %d: trained %d steps in %.1f s, %.0f %ss/s, mean loss %.3f",
                    self._cell, event["range"], event["epoch"], event["num_steps"], event["train_seconds"],
                    event["tokens_per_second"], self._unit, event["loss"],
                )  # fmt: skip
            elif event["event"] == "checkpoint_not_used":
                _log.warning("%s: NOT USED: %s: %s", self._cell, event["folder"], event["problem"])
        if last_step is not None:
            self._update(last_step)
        elif not self._is_terminal and self._done == 0 and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _log.info("%s: ranks are starting", self._cell)

    def _update(self, step: dict[str, Any]) -> None:
        rate = step["num_tokens"] / step["seconds"] if step["seconds"] else 0.0
        where = f"{self._cell} {step['range']} epoch {step['epoch']}"
        figures = f"loss {step['loss']:.3f}  {rate:,.0f} {self._unit}s/s"
        self._progress.update(self._bar, description=where, completed=self._done, figures=figures)
        if not self._is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            left = self._progress.tasks[self._bar].time_remaining
            remaining = "" if left is None else f", about {left:.0f} s left"
            _log.info("%s: step %d of %d, %s%s", where, self._done, self._total_steps, figures, remaining)
