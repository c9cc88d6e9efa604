"""A process that notes signals while ranks run, and is ended by them before and after."""

import signal
import subprocess
import sys

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


_INSIDE = ["before", "inside", "stopped"]


@pytest.mark.parametrize(
    ("ask_at", "number", "leaves_early", "code", "words", "line"),
    [
        # Outside it is ended at once.
        ("before", signal.SIGTERM, True, 75, ["before"], "stage: stopped; what is finished is kept"),
        ("after", signal.SIGTERM, True, 75, ["before", "inside", "whole", "after"], "stage: stopped"),
        # Inside the signal is noted, and answered on the way out.
        ("inside", signal.SIGTERM, True, 75, _INSIDE, "stage: stopped"),
        # One that came too late to be looked at, too.
        ("inside", signal.SIGTERM, False, 75, _INSIDE, "stage: stopped"),
        ("inside", signal.SIGINT, True, -signal.SIGINT, _INSIDE, "KeyboardInterrupt"),
    ],
)
def test_a_signal_ends_a_stage_with_its_code_and_line_and_inside_only_on_the_way_out(
    ask_at, number, leaves_early, code, words, line
):
    seconds = {name: 30 if name == ask_at else 0 for name in ("before", "inside", "after")}
    if not leaves_early:
        seconds["inside"] = 1
    process = subprocess.Popen(
        [sys.executable, "-c", _STAGE.format(leaves_early=leaves_early, **seconds)],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = []
    while not said or said[-1] != ask_at:
        said.append(process.stdout.readline().strip())
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, said + out.split()) == (code, words)
    assert err.splitlines()[-1].startswith(line)
