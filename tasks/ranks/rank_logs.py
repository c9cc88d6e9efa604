"""What torchrun and its ranks wrote into a folder of logs, and how they ended by it."""

import re
import signal
from pathlib import Path

_ENDING = re.compile(r"^\s*rank\s*:\s*\d+ \(local_rank: (\d+)\).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.MULTILINE)
_ROOT_CAUSE = "Root Cause"
_LINES_SHOWN = 20


class RankLogs:
    """What torchrun and its ranks wrote into a folder of logs, and how they ended by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def file(self) -> Path:
        """What torchrun itself wrote."""
        return self.folder / "torchrun.log"

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return the rank that caused the end, its exit code and last words, and where the whole logs are.

        `rank` is who did, where that is known; else it is a rank that a signal ended, or that torchrun saw fail first.
        """
        cause = self.find_root_cause()
        if rank is not None:
            cause = (rank, self._read_endings().get(rank, 0))
        if cause is None:
            return f"torchrun ended: {read_last_lines(self.file)} (whole log: {self.file})"
        return tell_end(*cause, words=self.read_last_words(cause[0]), folder=self.folder)

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        logs = sorted(self.folder.glob(f"*/attempt_*/{rank}/stderr.log"))
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


def tell_end(rank: int, code: int, *, words: str, folder: Path) -> str:
    """Return how a rank ended (negative: by a signal), where all logs are, and on further lines its last words."""
    ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} {ending}; logs in {folder}" + (f"\n{words}" if words else "")
