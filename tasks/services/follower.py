"""Forwarding a running training to a tracker that may be slow, locked or gone: the training never notices."""

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ddp_audit.process.redaction import redact_line
from tasks.services.tracked import make_step_point, read_segment_points
from tasks.services.trackers import TrackedRun

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

FLUSH_SECONDS = 10.0
"""Between two calls to the tracker while a cell trains."""
CLOSE_SECONDS = 30.0
"""At most, after a training: sending what is still missing."""
STOP_SECONDS = 2.0
"""At most, after a training that was asked to stop: whoever asked does not wait long, and the next run sends it."""

_STEPS_PER_FLUSH = 100
"""While ranks use the CPU, a flush must cost less than 0.1 s of it."""
_MAX_WAITING_STEPS = 20_000


class Follower:
    """Forwards a running cell's steps from a thread of its own: no call blocks, fails or waits.

    It opens its run at the first call, while the ranks start: importing MLflow and making its store takes seconds.
    """

    def __init__(self, tracker: str, open_run: Callable[[], TrackedRun]) -> None:
        self._tracker = tracker
        self._open_run = open_run
        self._run: TrackedRun | None = None
        self._steps: collections.deque[tuple[int, dict[str, Any]]] = collections.deque(maxlen=_MAX_WAITING_STEPS)
        self._folders: list[Path] = []
        self.status = "FINISHED"
        self._is_warned = False
        self.is_closing = threading.Event()
        self.thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def send(self, events: list[dict[str, Any]]) -> None:
        """Take the newest events of the live stream; those that are steps will be sent."""
        self.begin()
        now = int(time.time() * 1000)
        self._steps.extend((now, event) for event in events if event.get("event") == "step")

    def begin(self) -> None:
        """Open the run, if that has not begun yet."""
        if self.thread.ident is None:
            self.thread.start()

    def replay(self, folders: Iterable[Path]) -> None:
        """Take finished segments; what the store lacks of them is sent when the ranks are gone."""
        self._folders += folders

    def _work(self) -> None:
        self._attempt(self._start)
        while not self.is_closing.wait(FLUSH_SECONDS):
            self._attempt(self._flush)
        self._attempt(self._finish)

    def _attempt(self, part: Callable[[TrackedRun], None]) -> None:
        try:
            self._run = self._run or self._open_run()
            part(self._run)
        except Exception as error:
            # Whether the last call arrived is not known: a run that is opened anew asks the store what it has.
            self._run = None
            self.warn(describe_error(error))

    def warn(self, reason: str) -> None:
        if not self._is_warned:
            _log.warning("%s: %s; nothing is lost, the report sends what is missing", self._tracker, reason)
        self._is_warned = True

    def _start(self, run: TrackedRun) -> None:
        run.set_status("RUNNING")

    def _flush(self, run: TrackedRun) -> None:
        steps = [self._steps.popleft() for _ in range(min(len(self._steps), _STEPS_PER_FLUSH))]
        try:
            run.send(make_step_point(event, timestamp_ms=at) for at, event in steps)
        except Exception:
            self._steps.extendleft(reversed(steps))
            raise

    def _finish(self, run: TrackedRun) -> None:
        run.send(make_step_point(event, timestamp_ms=at) for at, event in self._steps)
        send_segments(run, self._folders)
        run.set_status(self.status)


class Followers:
    """One follower per tracker, each with a thread of its own: none waits for another's."""

    def __init__(self, *followers: Follower) -> None:
        self._followers = followers

    def send(self, events: list[dict[str, Any]]) -> None:
        """Hand the newest events of the live stream to all."""
        for follower in self._followers:
            follower.send(events)

    def replay(self, folders: Iterable[Path]) -> None:
        """Hand finished segments to all."""
        finished = list(folders)
        for follower in self._followers:
            follower.replay(finished)

    def close(self, status: str) -> None:
        """Have all runs completed; waits CLOSE_SECONDS at most, STOP_SECONDS if KILLED."""
        ends_at = time.perf_counter() + (STOP_SECONDS if status == "KILLED" else CLOSE_SECONDS)
        for follower in self._followers:
            follower.status = status
            follower.begin()
            follower.is_closing.set()
        for follower in self._followers:
            follower.thread.join(max(0.0, ends_at - time.perf_counter()))
            if follower.thread.is_alive():
                follower.warn("no answer in time")


def send_segments(run: TrackedRun, folders: Iterable[Path]) -> int:
    """Send what the run lacks of finished segments; return the number of values sent."""
    sent = 0
    for folder in folders:
        points, epoch = read_segment_points(folder)
        sent += run.send([*points, epoch])
    return sent


def attempt_within(seconds: float, call: Callable[..., _Result], *given: Any) -> tuple[_Result | None, str | None]:
    """Return what `call` returns and None, or None and in one line why it failed or did not end within `seconds`."""
    outcome: list[tuple[_Result | None, str | None]] = []

    def attempt() -> None:
        try:
            outcome.append((call(*given), None))
        except Exception as error:
            outcome.append((None, describe_error(error)))

    thread = threading.Thread(target=attempt, name="tracker", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, f"no answer within {seconds:.0f} seconds")


def describe_error(error: Exception) -> str:
    """Return the error's kind and its first words, without secrets."""
    words = redact_line(str(error))
    return f"{type(error).__name__}: {words[:160]}{'...' if len(words) > 160 else ''}"
