"""What happens inside whatever the script itself times.

The script is given clocks that say what the real ones say. At each reading it is looked which variables in its reach
hold an earlier reading, to the bit: from there to here is what it can be timing.
"""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from itertools import islice
from operator import add, itemgetter, sub
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

from ddp_audit.observer.record import MAIN, Guard, Line, Record
from ddp_audit.observer.timeline import OTHERS, Timeline

_CLOCKS = ("time", "perf_counter", "monotonic")
_FIRST_READINGS, _MOST_READINGS = 100, 10_000
"""So many are known by their value: what was read long ago is held no more, but for what the whole run is timed by."""
_MOST_VARIABLES = 2_000
_MOST_KEPT = 200
_OWN_REFERENCES = 3
"""To the copy of a frame's variables: the frame's, ours, and that of who counts; more where the script asked for it."""
_OURS = str(Path(__file__).resolve().parent)
_FOREIGN = ("site-packages", "dist-packages", "/lib/python")
_get_others = itemgetter(*OTHERS)


class ScriptLines:
    """Which lines are the script's own: those of files below its folder that belong to no package."""

    def __init__(self) -> None:
        script = Path(sys.argv[0] if sys.argv and sys.argv[0] else ".").absolute()
        self._folder = str(script.parent)
        self.owns: Callable[[str], bool] = functools.cache(self._owns)
        """Whether a file is the script's own; what is known already costs no line of Python."""

    def _owns(self, file: str) -> bool:
        whole = str(Path(file).absolute())
        is_foreign = whole.startswith(_OURS) or any(item in whole for item in _FOREIGN)
        return whole.startswith(self._folder) and not is_foreign

    def find(self) -> Line | None:
        """Return the innermost line of the script that is being run; None where there is none."""
        frame: Any = sys._getframe(1)
        while frame is not None and not self.owns(frame.f_code.co_filename):
            frame = frame.f_back
        return None if frame is None else self.name(frame.f_code.co_filename, frame.f_lineno)

    def name(self, file: str, number: int) -> Line:
        """Return a line by its file's place below the script's folder."""
        return Line(_shorten(file, self._folder), number)


@functools.cache
def _shorten(file: str, folder: str) -> str:
    return str(Path(file).absolute()).removeprefix(folder).lstrip("/")


class _Reading(NamedTuple):
    """What a clock said, and how far the script was then."""

    place: tuple[str, int]
    """File and line."""
    at: float
    others: tuple[float, ...]
    """Seconds of each kind of OTHERS."""
    step: int


def _list_floats(frame: Any) -> list[float]:
    """Return the floats that a frame has in its variables, and those in the attributes of its `self`.

    A reading is used where it was taken, or kept in an object of the frame.
    """
    variables = frame.f_locals
    results = [variable for variable in islice(variables.values(), _MOST_VARIABLES) if type(variable) is float]
    owner = variables.get("self")
    results += [item for item in getattr(owner, "__dict__", {}).values() if type(item) is float]
    is_copy = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED) and isinstance(variables, dict)
    if is_copy and sys.getrefcount(variables) <= _OWN_REFERENCES:
        # Until Python 3.13 the frame keeps its copy: what a step computed would live on into the next one.
        variables.clear()
    return results


class Clocks:
    """The clocks of the module `time`, where a line of the script reads them."""

    def __init__(self, record: Record, guard: Guard, times: Timeline, lines: ScriptLines) -> None:
        self._record, self._guard, self._times, self._lines = record, guard, times, lines
        self._known: dict[float, _Reading] = {}
        self._kept: list[Any] = []
        """Readings, with the floats that the frame held, which are matched together: that is cheaper."""
        self._windows: dict[tuple[tuple[str, int], tuple[str, int]], list[float]] = {}
        """Two lines that read a clock -> how many spans between them, their steps and seconds, those of each OTHERS."""
        self.count_steps: Callable[[], int] = lambda: 0

    def watch(self) -> None:
        """From now on the clocks are watched."""
        for name in _CLOCKS:
            setattr(time, name, self._make_observed(getattr(time, name)))

    def _make_observed(self, original: Callable[[], float]) -> Callable[[], float]:
        owns, see = self._lines.owns, self._guard.wrap(self._see)

        @functools.wraps(original)
        def read() -> float:
            value = original()
            frame = sys._getframe(1)
            if owns(frame.f_code.co_filename) and get_ident() == MAIN:
                see(value, frame)
            return value

        return read

    def _see(self, value: float, frame: Any) -> None:
        place = frame.f_code.co_filename, frame.f_lineno
        self._kept.append((value, place, self._times.mark(), self.count_steps(), _list_floats(frame)))
        if len(self._kept) >= _MOST_KEPT:
            self.match()

    def match(self) -> None:
        """Find what can have been timed by the readings since the last call."""
        kept, self._kept = self._kept, []
        self._times.count()
        for value, place, (at, total), step, floats in kept:
            now = _Reading(place, at, _get_others(total), step)
            for item in floats:
                earlier = self._known.get(item)
                if earlier is not None and now.step > earlier.step:
                    places = (earlier.place, now.place)
                    spent = map(sub, (now.step, now.at, *now.others), (earlier.step, earlier.at, *earlier.others))
                    known = self._windows.get(places) or [0.0] * (3 + len(OTHERS))
                    window = self._windows[places] = list(map(add, known, (1, *spent)))
                    if int(window[0]).bit_count() == 1:
                        self._write(places)
            self._known[value] = now
            if len(self._known) > _MOST_READINGS:
                del self._known[next(islice(self._known, _FIRST_READINGS, None))]

    def finish(self) -> None:
        """Write what was found, whole."""
        self.match()
        for places in self._windows:
            self._write(places)

    def _write(self, places: tuple[tuple[str, int], tuple[str, int]]) -> None:
        number, num_steps, seconds, *others = self._windows[places]
        results = {kind: round(spent, 6) for kind, spent in zip(OTHERS, others, strict=True) if spent > 0}
        begin, end = (self._lines.name(*place) for place in places)
        training = {"training": round(seconds - sum(results.values()), 6)}
        self._record.write(
            "window", begin=begin, end=end, number=int(number), num_steps=int(num_steps), seconds=training | results
        )
