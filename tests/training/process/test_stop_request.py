"""Being asked to stop."""

import os
import signal

import pytest

from training.process.events import StopRequest

pytestmark = pytest.mark.usefixtures("signals_as_before")


@pytest.mark.parametrize(
    ("signals", "is_listening", "code"),
    [
        ([signal.SIGINT], True, 0),
        # A second one ends the process at once.
        ([signal.SIGINT] * 2, True, 130),
        ([signal.SIGTERM], False, -signal.SIGTERM),
        ([signal.SIGINT], False, -signal.SIGINT),
    ],
)
def test_before_there_is_anything_to_save_a_signal_kills_the_process(signals, is_listening, code):
    pid = os.fork()
    if pid == 0:
        stop = StopRequest()
        if is_listening:
            stop.listen()
        for number in signals:
            signal.raise_signal(number)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
