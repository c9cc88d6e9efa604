"""A process that notes signals while ranks run, and is ended by them before and after."""

import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import PROJECT

_STAGE = """
import time
from tasks.process.stopping import exit_on_signals, stop_on_signals

def say(word):
    print(word, flush=True)

exit_on_signals("stage")
say("before")
time.sleep({before})
with stop_on_signals() as stop:
    say("inside")
    deadline = time.monotonic() + {inside}
    while time.monotonic() < deadline and not ({leaves_early} and stop.is_set()):
        time.sleep(0.01)
    say("stopped" if stop.is_set() else "whole")
say("after")
time.sleep({after})
say("end")
"""


def _run(*, ask_at, number=signal.SIGTERM, leaves_early=True):
    """Send the signal once the stage has said a word; return exit code, words and the last line of its errors."""
    seconds = {name: 30 if name == ask_at else 0 for name in ("before", "inside", "after")}
    if not leaves_early:
        seconds["inside"] = 1
    process = subprocess.Popen(
        [sys.executable, "-c", _STAGE.format(leaves_early=leaves_early, **seconds)],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    words = []
    while not words or words[-1] != ask_at:
        words.append(process.stdout.readline().strip())
    started = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 10
    return process.returncode, words + out.split(), (err.strip().splitlines() or [""])[-1]


@pytest.mark.parametrize("ask_at", ["before", "after"])
def test_outside_a_signal_ends_the_stage_at_once(ask_at):
    code, words, line = _run(ask_at=ask_at)
    assert (code, words[-1]) == (75, ask_at)
    assert line.startswith("stage: stopped; what is finished is kept")


def test_inside_it_is_noted_and_answered_on_the_way_out():
    code, words, line = _run(ask_at="inside")
    assert (code, words) == (75, ["before", "inside", "stopped"])
    assert line.startswith("stage: stopped")


def test_one_that_came_too_late_to_be_looked_at_is_answered_all_the_same():
    code, words, _ = _run(ask_at="inside", leaves_early=False)
    assert (code, words) == (75, ["before", "inside", "stopped"])


def test_ctrl_c_inside_is_one_by_hand_outside():
    code, words, line = _run(ask_at="inside", number=signal.SIGINT)
    assert (code, words, line) == (-signal.SIGINT, ["before", "inside", "stopped"], "KeyboardInterrupt")
