"""`python -m flows.serve`: the deployments of prefect.yaml, with a server and a runner, until Ctrl-C."""

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import NoReturn

from ddp_audit.process.lifeline import set_parent_death_signal
from flows.child import end_group
from flows.server import LOCK, LOGIN, SERVED, Server, find_or_start, set_environment
from tasks.params import load_params
from tasks.process.failure import ExitCode, ResourceError, exit_with_one_line
from tasks.process.lock import lock_file

logger = logging.getLogger(__name__)

_SECONDS_TO_END = 40.0


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description="Serve the deployments until Ctrl-C.")
    parser.parse_args()
    load_params()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(ExitCode.OK))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    set_environment()
    with lock_file(LOCK, "make serve", refusal="this project is served already: {holder}; end it first"):
        SERVED.unlink(missing_ok=True)
        server = find_or_start(temporary=False)
        try:
            logger.info("%s the Prefect server at %s", "starting" if server.is_ours else "using", server.url)
            server.wait_until_ready()
            if server.is_ours:
                page = server.url.removesuffix("/api")
                logger.info("UI: %s; it asks once for what stands in %s", page, LOGIN)
            _run_deployments(server)
        finally:
            SERVED.unlink(missing_ok=True)
            server.end()


def _run_deployments(server: Server) -> NoReturn:
    """Run the runner until it or the server ends, or we are asked to stop; a run under way may save first."""
    from flows.recording import wait_for_runs

    runner = subprocess.Popen(
        [sys.executable, "-m", "flows.runner"],
        # Prefect says on the terminal what we say better; all of it stands in the log of the run.
        env={"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", **os.environ},
        preexec_fn=partial(set_parent_death_signal, signal.SIGTERM, parent=os.getpid()),
        # Ctrl-C on the terminal is for us alone: a second signal would keep the run from saving.
        start_new_session=True,
    )
    try:
        while runner.poll() is None and server.is_running:
            time.sleep(0.5)
        if runner.returncode == ExitCode.CONFIGURATION:
            sys.exit(ExitCode.CONFIGURATION)  # it has said why
        ended = "runner ended by itself; see .work/logs/prefect_runner.log"
        raise ResourceError(f"the Prefect {ended if server.is_running else 'server ended by itself'}")
    finally:
        end_group(runner, seconds_to_save=_SECONDS_TO_END, is_leader_alone=True)
        # A run that lost its runner still tells the server how it ended.
        wait_for_runs(seconds=_SECONDS_TO_END)


if __name__ == "__main__":
    exit_with_one_line(_main, name="serve")
