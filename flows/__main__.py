"""`python -m flows`: the whole comparison, here and now, as one run of the flow."""

import argparse
import atexit
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tasks.params import load_params
from tasks.stage.failure import ExitCode, exit_with_one_line

RESULTS = Path("reports/results.json")
REPORT_PAGE = Path("reports/index.html")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flows", description="Run the comparison of params.yaml.")
    parser.add_argument("--rebench", action="store_true", help="measure the speed again; fail if a cell became slower")
    arguments = parser.parse_args()
    load_params()
    signal.signal(signal.SIGTERM, _stop)
    # Prefect says on the terminal what we say better; all of it stands in the log of the run.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")

    from flows.server import find_or_start

    server = find_or_start(temporary=True)
    # Registered before Prefect is imported, so that it happens after Prefect has sent its last events.
    atexit.register(server.end)
    from flows.ddp_compare import ddp_compare

    server.wait_until_ready()
    state = ddp_compare(rebench=arguments.rebench, return_state=True)
    if state.is_failed() and isinstance(code := state.result(raise_on_failure=False), int):
        if str(state.message).startswith(("upload: ", "rebench: ")):
            _say_verdict()  # the comparison itself is finished
        sys.stderr.write(f"{state.message}\n")
        sys.exit(code)
    state.result()
    _say_verdict()


def _say_verdict() -> None:
    print(json.loads(RESULTS.read_text(encoding="utf-8"))["verdict"])  # noqa: T201
    print(f"Report: {REPORT_PAGE}", flush=True)  # noqa: T201


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """End with the exit code of a run that goes on where it was at the next start."""
    sys.stderr.write("ddp-compare: stopped; what is finished is kept, and the next start goes on from there\n")
    sys.exit(ExitCode.PREEMPTED)


if __name__ == "__main__":
    exit_with_one_line(_main, name="ddp-compare")
