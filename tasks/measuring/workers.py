"""The ranks of a cell, started once and kept waiting for blocks to run (training/probing/timed_blocks.py)."""

import contextlib
import datetime
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any

from tasks.process.failure import DistributedError, PreemptedError, ResourceError
from tasks.ranks import make_code_arguments
from tasks.ranks.launchers import Nodes, load_launcher
from training.config import TrainingConfig
from training.process.failure import tells_out_of_memory
from training.process.files import write_json

_log = logging.getLogger(__name__)

_SECONDS_TO_START = 300.0
"""Imports and a model of several GB from a cold disk."""
_SECONDS_TO_ANSWER = 600.0
"""A block, or the building of a variant."""
_LONGEST_FOLDER = 100
"""In bytes: the path of a Unix socket has at most 107, the name in the folder included."""
_SECONDS_BETWEEN_LOOKS = 0.5

Answer = dict[str, Any]
"""What a rank says to what it was asked."""


class RanksEndedError(DistributedError):
    """The ranks of a cell ended though nobody asked them to."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """What the rank that caused it said last."""


def make_socket_folder() -> str:
    """Return a new folder of this user alone, below TMPDIR or, if that is too long for a socket's path, below /tmp."""
    folder = tempfile.mkdtemp(prefix="ddp-")
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="ddp-", dir="/tmp")


class Workers:
    """One cell's ranks; `run` has them run a block, and they are idle otherwise.

    Every rank has a line of its own to this process over a Unix socket: it ends when this process does.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        launcher: str,
        stop: threading.Event,
        nodes: Nodes | None = None,
        module: str = "training",
    ) -> None:
        """Start the ranks; `module` is what each of them runs."""
        self.cell = config.cell
        self.world_size = config.world_size
        self.ranges = [segment.range for segment in config.segments]
        """The ranges that its ranks know, in the order of their segments."""
        self._config, self._launcher, self._nodes, self._module, self._stop = config, launcher, nodes, module, stop
        self.devices: list[list[Answer]] = []
        """Of every launch: what each rank computes on, as it said itself (training/process/distributed.py)."""
        self._settings: dict[str, list[Answer]] = {}
        self._seconds_to_start = _SECONDS_TO_START + (0.0 if nodes is None else nodes.wait_seconds)
        self.start()

    def start(self) -> None:
        """Start the ranks, which are then to be waited for. Not from a thread: they end when it does."""
        config, nodes = self._config, self._nodes
        work = config.work_dir
        work.mkdir(parents=True, exist_ok=True)
        write_json(work / "config.json", config.as_json())
        self._folder = make_socket_folder()
        address = f"{self._folder}/line"
        self._listener = socket(AF_UNIX, SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(self.world_size)
        self._listener.settimeout(_SECONDS_BETWEEN_LOOKS)
        self._lines: dict[int, Connection] = {}
        self._launch = load_launcher(self._launcher).start(
            work / "config.json",
            world_size=self.world_size,
            threads_per_rank=config.threads_per_rank,
            log_folder=work / "logs" / datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f"),
            arguments=["--serve", address, *(make_code_arguments() if self._module == "training" else ())],
            module=self._module,
            nodes=nodes,
        )

    def wait_until_ready(self) -> None:
        """Wait until every rank is there. Raises DistributedError or ResourceError if one ends before."""
        deadline = time.monotonic() + self._seconds_to_start
        devices: dict[int, Answer] = {}
        while len(self._lines) < self.world_size:
            self._check(deadline, doing="starting")
            with contextlib.suppress(TimeoutError):
                line, _ = self._listener.accept()
                line.setblocking(True)
                connection = Connection(line.detach())
                said = self._receive(connection, deadline, doing="starting")
                self._lines[said["rank"]] = connection
                devices[said["rank"]] = said.get("device", {})
        self.devices.append([devices[rank] for rank in sorted(devices)])
        self._listener.close()
        # Nobody needs the path any more; a stage that is killed leaves none behind.
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(
        self, command: str, *, ranks: Sequence[int] | None = None, doing: str = "running a block", **details: Any
    ) -> list[Answer]:
        """Have the ranks (all of them by default) do something; return their answers in rank order.

        Raises DistributedError if one ends or says nothing for ten minutes, PreemptedError once asked to stop.
        """
        asked = sorted(self._lines) if ranks is None else list(ranks)
        message = json.dumps({"command": command, **details}).encode()
        deadline = time.monotonic() + _SECONDS_TO_ANSWER
        for rank in asked:
            try:
                self._lines[rank].send_bytes(message)
            except OSError:
                self._check(deadline, doing=doing)
        answers = [self._receive(self._lines[rank], deadline, doing=doing) for rank in asked]
        if command == "facts" and "setting" in answers[0]:
            known = self._settings.setdefault(json.dumps(details.get("variant", {}), sort_keys=True), [])
            if answers[0]["setting"] not in known:
                known.append(answers[0]["setting"])
        return answers

    def list_settings(self, variant: Mapping[str, Any]) -> list[Answer]:
        """Return what the ranks ran a variant with (training/record/setting.py): one, unless launches differed."""
        return self._settings.get(json.dumps(dict(variant), sort_keys=True), [])

    def close(self) -> None:
        """End the ranks."""
        for line in self._lines.values():
            line.close()
        self._listener.close()
        self._launch.stop(grace_seconds=0.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self, line: Connection, deadline: float, *, doing: str) -> Answer:
        while True:
            self._check(deadline, doing=doing)
            try:
                if line.poll(_SECONDS_BETWEEN_LOOKS):
                    answer: Answer = json.loads(line.recv_bytes())
                    return answer
            except (EOFError, OSError):
                # The rank has hung up; torchrun notices within a second why.
                end = time.monotonic() + 10
                while self._launch.is_running and time.monotonic() < end:
                    time.sleep(0.05)
                raise self._make_end_error(doing) from None

    def _check(self, deadline: float, *, doing: str) -> None:
        if self._stop.is_set():
            raise PreemptedError("measuring was stopped; the next run measures the speed anew")
        if not self._launch.is_running:
            raise self._make_end_error(doing)
        if time.monotonic() > deadline:
            raise DistributedError(f"cell {self.cell}: the ranks did not answer in time while {doing}; run again")

    def _make_end_error(self, doing: str) -> DistributedError | ResourceError:
        self._launch.stop(grace_seconds=0.0)
        first, _, words = self._launch.explain_end().partition("\n")
        _log.error("%s\n%s", first, words)
        if tells_out_of_memory(words):
            return ResourceError(
                f"cell {self.cell}: out of memory while {doing}: the ranks of all cells wait side by side; use a "
                "smaller micro_batch_size, fewer cells, or measure.speed: false"
            )
        message = f"cell {self.cell}: ended while {doing}: {first}; run again"
        named = [line.strip() for line in words.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line.strip())]
        return RanksEndedError(message, reason=(named[-1] if named else None) or first)


def restart_together(groups: Iterable[Workers]) -> None:
    """End what is left of the ranks of several cells and start them anew, beside each other.

    Raises what `Workers.wait_until_ready` does.
    """
    every = list(groups)
    for group in every:
        group.close()
    for group in every:
        group.start()
    for group in every:
        group.wait_until_ready()


@contextlib.contextmanager
def open_workers(
    configs: Mapping[str, TrainingConfig],
    *,
    launchers: Mapping[str, str],
    nodes: Mapping[str, Nodes | None] | None = None,
    stop: threading.Event,
) -> Iterator[dict[str, Workers]]:
    """Yield the waiting ranks of every cell, started together, and end them afterwards."""
    workers: dict[str, Workers] = {}
    with contextlib.ExitStack() as stack:
        for cell, config in configs.items():
            where = (nodes or {}).get(cell)
            workers[cell] = Workers(config, launcher=launchers[cell], nodes=where, stop=stop)
            stack.callback(workers[cell].close)
        for group in workers.values():
            group.wait_until_ready()
        yield workers
