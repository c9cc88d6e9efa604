"""One line and an exit code for what a user can mend; a traceback for what only we can."""

import subprocess
import sys

import pytest


def _end(body: str) -> subprocess.CompletedProcess[str]:
    code = f"from tasks.process.failure import *\ndef command():\n    {body}\nexit_with_one_line(command, name='stage')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("raise ConfigurationError('a\\nb')", 2),
        ("raise DataError('a b')", 3),
        ("raise ResourceError('a b')", 4),
        ("raise DivergedError('a b')", 5),
        ("raise DistributedError('a b')", 6),
        ("raise PreemptedError('a b')", 75),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_every_kind_of_failure_has_its_exit_code_and_one_line(body: str, code: int) -> None:
    done = _end(body)
    assert done.returncode == code
    assert done.stderr in {0: [""], 130: ["stage: interrupted\n"]}.get(code, ["stage: a b\n"])


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    done = _end("raise KeyError('x')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_full_disk_is_one_line_with_the_remedy() -> None:
    done = _end("open('/dev/full', 'w', buffering=1).write('x' * 10 + chr(10))")
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
