"""A launcher for the museum, copied into its scratch projects: ranks forked from a process that has torch already.

Each rank runs the same entry with the same environment as under torchrun, in a process of its own; what is saved is
the import of torch and transformers, which takes seconds.
"""

import os
import runpy
import shutil
import signal
import sys
import time
import traceback

from tasks.ranks.launchers.torchrun import make_rendezvous

_SECONDS_FOR_THE_OTHERS = 3.0
"""After the failure of one rank; torchrun also ends the others then."""
_LINES_SHOWN = 20


class Launch:
    """A group of ranks, children of this process."""

    def __init__(self, config, *, world_size, threads_per_rank, log_folder, arguments=(), module="training", **_):
        log_folder.mkdir(parents=True, exist_ok=True)
        self.log_folder = log_folder
        self._codes = {}
        """Of the ranks that have ended, the first of them first."""
        self._killed = None
        self._is_stopped = False
        # As under torchrun on one machine; a port that was found free may be somebody else's a moment later.
        self._rendezvous = log_folder.resolve() / "rendezvous"
        environment = {
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": str(threads_per_rank),
            **make_rendezvous(self._rendezvous),
        }
        self._running = {}
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                _be_rank(
                    module,
                    ["--config", str(config), *arguments],
                    log_folder / f"{rank}.log",
                    {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            self._running[pid] = rank

    @property
    def _failed(self):
        """The rank that failed first; None if none has."""
        return next((rank for rank, code in self._codes.items() if code), None)

    @property
    def is_running(self):
        """Whether a rank still runs; when one has failed, the others are ended."""
        self._collect()
        if self._failed is not None and self._running:
            self.stop(grace_seconds=_SECONDS_FOR_THE_OTHERS)
        return bool(self._running)

    def stop(self, *, grace_seconds, meanwhile=lambda: None):
        """Ask the ranks to save and end (SIGTERM); after the grace time end them (SIGKILL)."""
        deadline = time.monotonic() + grace_seconds
        self._collect()
        self._is_stopped = True
        self._signal(signal.SIGTERM)
        while self._running and time.monotonic() < deadline:
            meanwhile()
            time.sleep(0.02)
            self._collect()
        self._signal(signal.SIGKILL)
        while self._running:
            self._collect()
        shutil.rmtree(self._rendezvous, ignore_errors=True)

    def ask_for_stacks(self):
        """Do nothing: all ranks are on this machine."""

    def exit_code(self):
        """Return 0, or the exit code of the rank that failed first."""
        while self.is_running:
            time.sleep(0.02)
        return self._codes.get(self._failed, 0)

    def explain_end(self, *, rank=None):
        """Return the exit code of a rank, by default of the first that failed, and its last words."""
        shown = next((one for one in (rank, self._killed, self._failed) if one is not None), 0)
        return f"rank {shown} ended with exit code {self._codes.get(shown)}\n{self.read_last_words(shown)}"

    def read_last_words(self, rank):
        """Return the end of what the rank said."""
        words = (self.log_folder / f"{rank}.log").read_text(errors="replace").strip().splitlines()
        return "\n".join(words[-_LINES_SHOWN:])

    def find_killed_rank(self):
        """Return a rank that a signal ended, and not one of ours."""
        return self._killed

    def _collect(self):
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                rank, code = self._running.pop(pid), os.waitstatus_to_exitcode(status)
                self._codes[rank] = code
                if code < 0 and not self._is_stopped:
                    self._killed = rank

    def _signal(self, number):
        for pid in self._running:
            os.kill(pid, number)


def _be_rank(module, arguments, log, environment):
    """Run the training's entry in this process, which is a fresh fork, and end it."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


start = Launch
"""What every launcher offers under this name."""
