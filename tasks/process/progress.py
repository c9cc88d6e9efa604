"""Progress of counted work: a bar on a terminal, elsewhere a line every few seconds."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 5.0


@contextlib.contextmanager
def show_progress(what: str, total: int | None, *, seconds: float | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function to call with the number of items done since its last call, and a text about them.

    `total` None: nobody knows yet.

    `seconds`: what the work is given, where that and no number of items ends it.
    """
    is_terminal = sys.stderr.isatty()
    started = time.monotonic()
    next_line = started + _SECONDS_BETWEEN_LINES
    done = 0

    def advance(count: int, text: str = "") -> None:
        nonlocal next_line, done
        done += count
        spent = time.monotonic() - started
        if seconds is None:
            progress.update(bar, completed=done, text=text)
            left = progress.tasks[bar].time_remaining
            end = "" if total is None else f" of {total}"
            text += "" if left is None else f", about {left:.0f} s left"
        else:
            progress.update(bar, completed=min(spent, seconds), description=f"{what}: {done}")
            end = f", about {seconds - spent:.0f} s left" if spent < seconds else f", past their {seconds:.0f} s"
        if not is_terminal and time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _log.info("%s: %d%s%s", what, done, end, text)

    counted = (MofNCompleteColumn(),) if seconds is None else ()
    columns = (TextColumn("{task.description}{task.fields[text]}"), BarColumn(), *counted, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not is_terminal, transient=True) as progress:
        bar = progress.add_task(what, total=total if seconds is None else seconds, text="")
        yield advance
