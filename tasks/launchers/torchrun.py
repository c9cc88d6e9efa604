"""Ranks started by torchrun on this machine: each in its own process, all ended with this one."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.stage.log_cap import LogCap
from tasks.stage.parent import parent_death_signal_setter

_ENDING = re.compile(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
_ROOT_CAUSE = "Root Cause"
_LINES_SHOWN = 20


class Launch:
    """A group of ranks under torchrun.

    torchrun leads a session of its own; it is ended by signal to that whole session, and the kernel ends it when this
    process dies. Every rank, in turn, ends itself when torchrun dies.
    """

    def __init__(
        self,
        config: Path,
        *,
        world_size: int,
        threads_per_rank: int,
        log_folder: Path,
        arguments: Sequence[str] = (),
        module: str = "training",
    ) -> None:
        """Start `python -m module --config config *arguments` as every rank."""
        log_folder.mkdir(parents=True, exist_ok=True)
        self.log_folder = log_folder
        self._log = log_folder / "torchrun.log"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={world_size}", "--max-restarts=0"]
        command += [f"--log-dir={log_folder}", "--redirects=3", "-m", module, "--config", str(config), *arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads_per_rank)},
                preexec_fn=parent_death_signal_setter(signal.SIGTERM),
            )
        self._log_cap = LogCap(log_folder)

    @property
    def is_running(self) -> bool:
        """Whether torchrun still runs."""
        return self._process.poll() is None

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the ranks to save and end (SIGTERM); after the grace time, or on any exception, end them (SIGKILL)."""
        try:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_seconds
            while self.is_running and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            # Also when torchrun has ended by itself: none of its session may stay.
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._log_cap.close()

    def exit_code(self) -> int:
        """Return 0, or the exit code of the rank that caused the end (negative: the signal that ended it)."""
        code = self._process.wait()
        cause = self._root_cause()
        return code if code == 0 or cause is None else cause[1]

    def explanation(self, *, rank: int | None = None) -> str:
        """Return the rank that caused the end, its exit code and last words, and where the whole logs are.

        `rank` is who did, where that is known; else it is a rank that a signal ended, or that torchrun saw fail first.
        """
        cause = self._root_cause()
        if rank is not None:
            cause = (rank, self._endings().get(rank, 0))
        if cause is None:
            return f"torchrun ended: {self._last_lines(self._log)} (whole log: {self._log})"
        rank, code = cause
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        words = self.last_words(rank)
        return f"rank {rank} {ending}; logs in {self.log_folder}" + (f"\n{words}" if words else "")

    def last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        logs = sorted(self.log_folder.glob(f"*/attempt_*/{rank}/stderr.log"))
        return self._last_lines(logs[-1]) if logs else ""

    def killed_rank(self) -> int | None:
        """Return a rank that a signal ended, and not torchrun's own SIGTERM: the others then failed because of it."""
        killed = [rank for rank, code in self._endings().items() if code < 0 and code != -signal.SIGTERM]
        return killed[0] if killed else None

    def _root_cause(self) -> tuple[int, int] | None:
        endings = self._endings()
        if (killed := self.killed_rank()) is not None:
            return killed, endings[killed]
        _, is_there, cause = self._log.read_text(errors="replace").partition(_ROOT_CAUSE)
        match = _ENDING.search(cause) if is_there else None
        return (int(match[1]), int(match[2])) if match else None

    def _endings(self) -> dict[int, int]:
        """Return the exit code of every rank that torchrun reports as failed, the root cause last."""
        text = self._log.read_text(errors="replace")
        return {int(match[1]): int(match[2]) for match in _ENDING.finditer(text)}

    def _last_lines(self, file: Path) -> str:
        return "\n".join(file.read_text(errors="replace").strip().splitlines()[-_LINES_SHOWN:])

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


start = Launch
"""What every launcher offers under this name."""
