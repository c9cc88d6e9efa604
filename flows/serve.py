"""`python -m flows.serve`: the deployments of prefect.yaml, with a server and a worker, until Ctrl-C."""

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import NoReturn

from flows.child import end_group, environment_for
from flows.server import HOME, Server, find_or_start
from tasks.params import load_params
from tasks.stage.failure import ExitCode, ResourceError, exit_with_one_line
from tasks.stage.lock import holding
from tasks.stage.parent import parent_death_signal_setter

logger = logging.getLogger(__name__)

POOL = "ddp-compare"
"""The work pool that prefect.yaml names."""
LOCK = HOME / "serve.lock"
_SECONDS_TO_END = 40.0


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description="Serve the deployments until Ctrl-C.")
    parser.parse_args()
    load_params()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    with holding(LOCK, "make serve", refusal="this project is served already: {holder}; end it first"):
        server = find_or_start(temporary=False)
        try:
            logger.info("%s the Prefect server at %s", "starting" if server.is_ours else "using", server.url)
            server.wait_until_ready()
            _prepare()
            _serve(server)
        finally:
            server.end()


def _prepare() -> None:
    """Bring pool and deployments up to date, after ending the runs that a killed server has left Running."""
    from flows.running import end_abandoned_runs

    end_abandoned_runs()
    _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    _prefect("deploy", "--all")


def _prefect(*arguments: str) -> None:
    ran = subprocess.run(_command(*arguments), env=environment_for(sys.executable), capture_output=True, text=True)
    if ran.returncode != 0:
        raise ResourceError(f"prefect {' '.join(arguments)}: {(ran.stderr or ran.stdout).strip()[-500:]}")


def _serve(server: Server) -> None:
    """Run the worker until it or the server ends, or we are asked to stop; a run under way may save first."""
    from flows.running import wait_for_runs

    worker = subprocess.Popen(
        _command(
            "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1", "--name", f"serve-{os.getpid()}"
        ),
        env=environment_for(sys.executable),
        preexec_fn=parent_death_signal_setter(signal.SIGTERM),
        # Ctrl-C on the terminal is for us alone: a second signal would keep the run from saving.
        start_new_session=True,
    )
    page = server.url.removesuffix("/api")
    logger.info("serving ddp-compare: `prefect deployment run ddp-compare` starts a run; UI: %s", page)
    try:
        while worker.poll() is None and server.is_running:
            time.sleep(0.5)
        raise ResourceError(f"the Prefect {'worker' if server.is_running else 'server'} ended by itself")
    finally:
        end_group(worker, seconds_to_save=_SECONDS_TO_END, is_leader_alone=True)
        # A run that lost its worker still tells the server how it ended.
        wait_for_runs(seconds=_SECONDS_TO_END)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "prefect", "--no-prompt", *arguments]


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(ExitCode.OK)


if __name__ == "__main__":
    exit_with_one_line(_main, name="serve")
