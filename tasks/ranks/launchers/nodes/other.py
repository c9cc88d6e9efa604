"""Another node, as the head knows it."""

import contextlib
import time
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.process.failure import ConfigurationError, DataError, DistributedError, ExitCode, ResourceError, StageError
from tasks.ranks.launchers.nodes.line import Line, LostError
from tasks.ranks.launchers.nodes.parcel import send_files
from training.process.failure import FAILURES
from training.process.files import write_json
from training.process.heartbeat import NUM_WORDS

_REFUSALS: dict[int, type[StageError]] = {
    ExitCode.CONFIGURATION: ConfigurationError,
    ExitCode.DATA: DataError,
    ExitCode.RESOURCES: ResourceError,
}


class OtherNode:
    """One node's line, and what came over it."""

    def __init__(
        self, node_rank: int, line: Line, *, host: str, cell: str, ranks_per_node: int, words: memoryview | None
    ) -> None:
        self.node_rank = node_rank
        self._ranks_per_node = ranks_per_node
        self._line = line
        # It may have knocked long ago; its silence counts from here.
        line.heard_at = time.monotonic()
        self._host = host
        self._cell = cell
        self._words = words
        self._clock_asked_at = 0.0
        self._clock_ahead: float | None = None
        """Seconds by which its monotonic clock is ahead of ours."""
        self.facts: dict[str, Any] = {}
        """What it is; empty until it is ready."""
        self._is_lost = False
        self.exit_code: int | None = None
        """How its ranks ended; None while they run."""

    def __str__(self) -> str:
        gpus = ", ".join(gpu["name"] for gpu in self.facts["gpus"]) or "no GPU"
        parts = [self._host, self.facts["cpu"], f"{self.facts['num_cpus']} CPUs", gpus, self.facts["address"]]
        return ", ".join(parts)

    @property
    def has_clock(self) -> bool:
        """Whether its clock is known."""
        return self._clock_ahead is not None

    def tell(self, parcel: dict[str, Any], **launch: Any) -> None:
        """Tell it what to run, and send what it cannot have."""
        self._say(node_rank=self.node_rank, parcel=parcel, **launch)
        try:
            send_files(parcel, self._line)
        except LostError as error:
            raise self._make_lost_error(str(error)) from None

    def ask_clock(self) -> None:
        """Ask what time it is there: failures bear times, and the first one is the cause of the others."""
        self._clock_asked_at = time.monotonic()
        self._say(clock=True)

    def start_ranks(self, endpoint: str) -> None:
        """Have it start its ranks."""
        self._say(go=endpoint)

    def say_alive(self) -> None:
        """Say that the head is there; one that is gone is noticed by `listen`."""
        with contextlib.suppress(LostError):
            self._line.say(alive=True)

    def ask_for_stacks(self) -> None:
        """Have its ranks write their stacks."""
        self._say(stacks=True)

    def ask_to_stop(self) -> None:
        """Have its ranks save and end."""
        with contextlib.suppress(LostError):
            self._line.say(stop=True)

    def close_launch(self) -> None:
        """Have it end what still runs, and send its logs."""
        with contextlib.suppress(LostError):
            self._line.say(close=True)

    def listen(self, work: Path, silence_seconds: float) -> None:
        """Take in all that it said; raises the StageError of a node that refuses or is lost."""
        try:
            while (message := self._line.hear(0)) is not None:
                self._handle_message(message, work)
        except LostError as error:
            raise self._make_lost_error(str(error)) from None
        if time.monotonic() - self._line.heard_at > silence_seconds:
            raise self._make_lost_error(f"nothing from it for {silence_seconds:.0f} s")

    def gather(self, folder: Path, *, seconds: float) -> None:
        """Write the logs that it sends into the folder, until it has sent all or the time is up; one that is lost sends
        none.
        """
        deadline = time.monotonic() + (0.0 if self._is_lost else seconds)
        with contextlib.suppress(LostError):
            while time.monotonic() < deadline:
                message = self._line.hear(0.1) or {}
                if "file" in message:
                    _write(folder, message["file"], self._line.hear_bytes())
                if "ended" in message:
                    self.exit_code = message["ended"]
                if "closed" in message:
                    self.facts |= message["closed"]
                    break
        self._line.close()

    def _handle_message(self, message: dict[str, Any], work: Path) -> None:
        if "refused" in message:
            kind = _REFUSALS.get(message["exit_code"], DistributedError)
            raise kind(f"cell {self._cell}: {self._name}: {message['refused']}")
        if "ready" in message:
            self.facts = {**message["ready"], "gpu_energy_joules": None}
        if "clock" in message:
            now = time.monotonic()
            self._clock_ahead = message["clock"] - (self._clock_asked_at + now) / 2
        for rank, words in message.get("at", {}).items():
            if self._words is not None:
                start = self._require_own_rank(rank) * NUM_WORDS
                for index, word in enumerate(words):
                    self._words[start + index] = word
        for failure in message.get("failures", []):
            at = failure["at"] - (self._clock_ahead or 0.0)
            write_json(work / FAILURES / f"rank-{self._require_own_rank(failure['rank'])}.json", {**failure, "at": at})
        if "ended" in message:
            self.exit_code = message["ended"]

    def _say(self, **message: Any) -> None:
        try:
            self._line.say(**message)
        except LostError as error:
            raise self._make_lost_error(str(error)) from None

    @property
    def _name(self) -> str:
        return f"node {self.node_rank} ({self._host})"

    def _require_own_rank(self, said: Any) -> int:
        """Return the number of a rank of its own, as it said it."""
        size = self._ranks_per_node
        if str(said).isdecimal() and self.node_rank * size <= int(said) < (self.node_rank + 1) * size:
            return int(said)
        raise self._make_lost_error(f"it spoke of rank {str(said)[:20]}, which is none of its own")

    def _make_lost_error(self, why: str) -> DistributedError:
        self._is_lost = True
        return DistributedError(
            f"cell {self._cell}: {self._name} is lost: {why}; all ranks were ended; run again, it goes on from the "
            "last checkpoint"
        )


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file that another node named, never outside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
