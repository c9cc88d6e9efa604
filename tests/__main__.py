"""Runs the tests: what `make test` does after the checks, and with `--all` what `make test-all` does.

Two files at a time first, then, one by one, what is told by seconds. Where tests of up to three files have failed, they
are run once more when nothing else runs: what passes then is printed as unsteady. It is a defect to be mended, but one
that the machine brought to light and not the change under test. What fails twice has failed, and so has all that fails
where more files do.

Beside each other they run under SCHED_BATCH: a thread that wakes does not pre-empt the one that runs. Gloo's own thread
wakes for every few bytes, often while the thread that it interrupts holds the lock that it needs, and spins until that
one runs again: of four ranks on two cores (Linux 6.18), 400 all-reduces took 1.9 s under SCHED_BATCH, and 3.8 s
without. What is told by seconds runs by itself, scheduled as a user's programs are.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.list_failures import FAILED_FILE

_FOLDER = Path(__file__).resolve().parent
_MOST_FILES = 3
_TESTS_FAILED = 1
"""The exit code of pytest that says so, and nothing else."""


def list_parts(*, has_long):
    """Return the arguments of pytest for each part; only files with tests that run alone are looked at for those."""
    which = "" if has_long else " and not long"
    alone = [str(file) for file in sorted(_FOLDER.rglob("test_*.py")) if "mark.alone" in file.read_text("utf-8")]
    return [
        ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", f"not alone{which}"],
        ["-m", f"alone{which}", *alone],
    ]


def run_parts(parts):
    """Run pytest with each of these arguments; return 0 if no test failed, or none that failed failed twice."""
    with tempfile.TemporaryDirectory() as scratch:
        failed_file = Path(scratch) / "failed"
        failed_file.touch()
        environment = {"DDP_COMPARE_FINISHED": scratch, FAILED_FILE: str(failed_file)}
        codes = {_run_pytest(part, environment) for part in parts}
        failed = list(dict.fromkeys(failed_file.read_text(encoding="utf-8").splitlines()))
        if codes == {0}:
            return 0
        num_files = len({name.partition("::")[0] for name in failed})
        is_run = all("::" in name for name in failed)  # else a file could not be imported, which no other run mends
        if codes - {0, _TESTS_FAILED} or not is_run or not 0 < num_files <= _MOST_FILES:
            return max(codes)
        print(f"\nOnce more, with nothing beside: {', '.join(failed)}\n", flush=True)
        if code := _run_pytest(failed, environment):
            return code
    print(f"\nUNSTEADY, passed only when run once more: {', '.join(failed)}")
    return 0


def _run_pytest(arguments, environment):
    command = [sys.executable, "-m", "pytest", "-p", "tests.list_failures", *arguments]
    prepare = _be_batch if "-n" in arguments else None
    return subprocess.run(command, env=os.environ | environment, check=False, preexec_fn=prepare).returncode


def _be_batch():
    with contextlib.suppress(OSError):  # a sandbox, or a priority that is not to be left
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    has_long = "--all" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        # What takes each process that needs it seconds to make is made once, while tests are collected.
        os.environ["DDP_COMPARE_WARM"] = f"{folder}/warm"
        with subprocess.Popen(
            [sys.executable, "-m", "tests.warm.environment", f"{folder}/warm"], stdin=subprocess.PIPE
        ):
            code = run_parts(list_parts(has_long=has_long))
    if not has_long:
        print("Not run: the long tests; make test-all runs them, too.")
    sys.exit(code)
