"""A torchrun of one machine: what it is told, what it and its ranks wrote, and how they ended by it."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ddp_audit.process.lifeline import set_parent_death_signal

_ENDING = re.compile(r"^\s*rank\s*:\s*\d+ \(local_rank: (\d+)\).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
_ROOT_CAUSE = "Root Cause"
_LINES_SHOWN = 20
MAX_BYTES = 16_000_000
"""Of all logs of one launch together, about: a rank may write more between two looks."""
_SECONDS_BETWEEN_LOOKS = 0.5
_HEAD_SHARE = 8

NO_SHARED_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Unless it is told so, torchrun serves a store for the ranks on a port of all interfaces."""


def list_torchrun_words(meeting: Path, *, world_size: int, logs: Path) -> list[str]:
    """Return Python's arguments for a torchrun of this machine alone; those of the script follow.

    It and its ranks meet in files of that folder, which nobody but their owner can read or write: `--standalone` opens
    two ports to the network and unpickles what anybody writes there.
    """
    return [
        "-m", "torch.distributed.run", "--nnodes=1", "--rdzv-backend=c10d",
        f"--rdzv-endpoint={meeting / 'torchrun'}",
        # Every heartbeat would make the file longer, and there is nobody else to hear it.
        "--rdzv-conf=store_type=file,keep_alive_interval=100000000",
        # The name of this machine may not resolve.
        "--rdzv-id=one-machine", "--local-addr=localhost", f"--nproc-per-node={world_size}", "--max-restarts=0",
        f"--log-dir={logs}", "--redirects=3",
    ]  # fmt: skip


class Launch:
    """A command line in a session of its own, such as a torchrun, which ends with this process; what it and its ranks
    wrote, and how they ended by it."""

    def __init__(
        self, command: Sequence[str], *, log_folder: Path, environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        """Start it in `folder`, by default this process's."""
        log_folder.mkdir(parents=True, exist_ok=True)
        self.log_folder = log_folder
        self.file = log_folder / "torchrun.log"
        """What it wrote itself."""
        with self.file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                cwd=folder, env=dict(environment),
                preexec_fn=partial(set_parent_death_signal, signal.SIGTERM, parent=os.getpid()),
            )  # fmt: skip
        self._log_cap = LogCap(log_folder)

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def exit_code(self) -> int:
        """Return its exit code: that of the rank that caused the end (negative: by a signal), where torchrun says."""
        code = self._process.wait()
        cause = self.find_root_cause()
        return code if code == 0 or cause is None else cause[1]

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return the rank that caused the end, its exit code and last words, and where the whole logs are.

        `rank` is who did, where that is known; else it is a rank that a signal ended, or that torchrun saw fail first.
        """
        cause = self.find_root_cause()
        if rank is not None:
            cause = (rank, self._read_endings().get(rank, 0))
        if cause is None:
            return f"torchrun ended: {read_last_lines(self.file)} (whole log: {self.file})"
        return format_end(f"rank {cause[0]}", cause[1], words=self.read_last_words(cause[0]), folder=self.log_folder)

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        logs = sorted(self.log_folder.glob(f"*/attempt_*/{rank}/stderr.log"))
        return read_last_lines(logs[-1]) if logs else ""

    def find_killed_rank(self) -> int | None:
        """Return a rank that a signal ended, and not torchrun's own SIGTERM: the others then failed because of it."""
        killed = [rank for rank, code in self._read_endings().items() if code < 0 and code != -signal.SIGTERM]
        return killed[0] if killed else None

    def find_root_cause(self) -> tuple[int, int] | None:
        """Return the rank that caused the end, and its exit code; None where torchrun names none."""
        endings = self._read_endings()
        if (killed := self.find_killed_rank()) is not None:
            return killed, endings[killed]
        _, is_there, cause = self._read_text().partition(_ROOT_CAUSE)
        match = _ENDING.search(cause) if is_there else None
        return (int(match[1]), int(match[2])) if match else None

    def _read_endings(self) -> dict[int, int]:
        """Return the exit code of every rank that torchrun reports as failed, the root cause last."""
        return {int(match[1]): int(match[2]) for match in _ENDING.finditer(self._read_text())}

    def _read_text(self) -> str:
        return self.file.read_text(errors="replace") if self.file.exists() else ""


def read_last_lines(file: Path) -> str:
    """Return the end of a log."""
    if not file.exists():
        return "without a log"
    return "\n".join(file.read_text(errors="replace").strip().splitlines()[-_LINES_SHOWN:])


def format_end(who: str, code: int, *, words: str, folder: Path) -> str:
    """Return how a process ended (negative: by a signal), where all logs are, and on further lines its last words."""
    ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{who} {ending}; logs in {folder}" + (f"\n{words}" if words else "")


class LogCap:
    """Keeps the logs below a folder short until it is closed.

    Whoever writes them has them open for appending (O_APPEND); else what is written next would leave a hole before it.
    """

    def __init__(self, folder: Path, *, max_bytes: int | None = None) -> None:
        self._folder = folder
        self._max_bytes = MAX_BYTES if max_bytes is None else max_bytes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="log cap", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look a last time."""
        self._is_over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        logs = list(self._folder.rglob("*.log"))
        for log in logs:
            cut_middle(log, max_bytes=self._max_bytes // len(logs))


def cut_middle(log: Path, *, max_bytes: int) -> None:
    """Leave the first eighth and the last quarter of `max_bytes` of a longer log, and say how much went."""
    try:
        size = log.stat().st_size
        if size <= max_bytes:
            return
        with log.open("rb") as file:
            head = file.read(max_bytes // _HEAD_SHARE)
            file.seek(-(max_bytes // 4), os.SEEK_END)
            tail = file.read(max_bytes // 4)
        said = f"\n... {size - len(head) - len(tail):,} bytes of this log were cut out here ...\n"
        # Lines that come meanwhile stand before the marker or after the tail, never before the head.
        os.truncate(log, len(head))
        with log.open("ab") as file:
            file.write(said.encode() + tail)
    except FileNotFoundError:
        return
