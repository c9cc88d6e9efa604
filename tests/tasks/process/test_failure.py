"""One line and an exit code for what a user can mend; a traceback for what only we can."""

import pytest

from tests.processes import run_python


def _end(body):
    code = f"from tasks.process.failure import *\ndef command():\n    {body}\nexit_with_one_line(command, name='stage')"
    return run_python("-c", code)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("raise ConfigurationError('a\\nb')", 2, "stage: a b\n"),
        ("raise PreemptedError('a b')", 75, "stage: a b\n"),
        ("raise KeyboardInterrupt", 130, "stage: interrupted\n"),
        # Ctrl-C twice, while ranks run that do not end at the first.
        (
            "import signal; from tasks.process import stopping\n"
            "    with stopping.stop_on_signals(): [signal.raise_signal(signal.SIGINT) for _ in range(2)]",
            130,
            "stage: interrupted\n",
        ),
        ("raise KeyError('x')", 1, "Traceback"),
        ("import atexit, os; atexit.register(os.write, 2, b'handler\\n')", 0, "handler\n"),
        ("import os, sys; sys.stdout = open('/dev/full', 'w'); print(1); os.write(2, b'left\\n')", 120, "left\n"),
        ("open('/dev/full', 'w', buffering=1).write('x' * 10 + chr(10))", 4, "stage: "),
    ],
)
def test_a_failure_has_its_exit_code_and_one_line_and_a_fault_of_ours_its_traceback(body, code, says):
    done = _end(body)
    assert (done.returncode, done.stderr[: len(says)]) == (code, says)
    assert (done.stderr.count("\n") == 1) == (code != 1)
