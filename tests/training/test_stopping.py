"""Being asked to stop."""

import os
import signal
from collections.abc import Iterator

import pytest

from training.stopping import StopRequest


@pytest.fixture(autouse=True)
def _handlers_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_asks_for_exit_code_75_and_sigint_for_130() -> None:
    stop = StopRequest()
    stop.listen()
    assert stop.exit_code == 0
    signal.raise_signal(signal.SIGTERM)
    assert stop.exit_code == 75
    signal.raise_signal(signal.SIGINT)
    assert stop.exit_code == 130


def _exit_code_after(*signals: signal.Signals, is_listening: bool) -> int:
    pid = os.fork()
    if pid == 0:
        stop = StopRequest()
        if is_listening:
            stop.listen()
        for number in signals:
            signal.raise_signal(number)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_second_sigint_ends_the_process_at_once() -> None:
    assert _exit_code_after(signal.SIGINT, is_listening=True) == 0
    assert _exit_code_after(signal.SIGINT, signal.SIGINT, is_listening=True) == 130


def test_before_there_is_anything_to_save_a_signal_kills_the_process() -> None:
    assert _exit_code_after(signal.SIGTERM, is_listening=False) == -signal.SIGTERM
    assert _exit_code_after(signal.SIGINT, is_listening=False) == -signal.SIGINT
