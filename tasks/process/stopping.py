"""Being asked to stop: by a scheduler (SIGTERM), a closed terminal (SIGHUP) or by hand (SIGINT)."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from ddp_audit.process.lifeline import StopEvent
from training.process.failure import EXIT_PREEMPTED

_by_hand = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield the event that the first of these signals sets while inside; a second SIGINT raises KeyboardInterrupt.

    Whoever leaves without an exception is answered afterwards as before; a stop that is under way is not disturbed.
    """
    stop = StopEvent()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}

    def ask(number: int, _frame: FrameType | None) -> None:
        global _by_hand
        if number == signal.SIGINT:
            if _by_hand:
                raise KeyboardInterrupt
            _by_hand = True
        stop.set()

    _set_handlers(ask)
    signal.signal(signal.SIGINT, ask)
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)
    if stop.is_set():
        # It came when there was nothing left to stop.
        signal.raise_signal(signal.SIGINT if _by_hand else signal.SIGTERM)


def is_stopped_by_hand() -> bool:
    """Return True once `stop_on_signals` has seen a SIGINT."""
    return _by_hand


def exit_on_signals(name: str) -> None:
    """End this process with 75 and one line of `name` on SIGTERM or SIGHUP, as any `sys.exit` would."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        # Linux tells of a parent's death once for each of its threads.
        _set_handlers(signal.SIG_IGN)
        sys.stderr.write(f"{name}: stopped; what is finished is kept, and the next start goes on from there\n")
        sys.exit(EXIT_PREEMPTED)

    _set_handlers(leave)


def _set_handlers(act: "signal._HANDLER") -> None:
    signal.signal(signal.SIGTERM, act)
    # Under nohup a closed terminal is no request.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, act)
