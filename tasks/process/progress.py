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
def show_progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of items done since its last call; `total` None: nobody knows yet."""
    is_terminal = sys.stderr.isatty()
    next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
    done = 0

    def advance(count: int) -> None:
        nonlocal next_line, done
        done += count
        progress.update(bar, completed=done)
        if not is_terminal and time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _log.info("%s: %d%s", what, done, f" of {total}" if total is not None else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not is_terminal, transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield advance
