"""Ranks started by Ray: one actor per machine holds the ranks there, the first ones on the stage's own machine.

Ray places the actors, carries files and answers, and ends actors whose driver is gone. What it carries is asked for
with a token, always. A cluster of this machine alone begins and ends with the process.
"""

import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddp_audit.process.torchrun import NO_SHARED_STORE, format_end, read_last_lines
from tasks.process.failure import ResourceError
from tasks.ranks import launchers
from tasks.ranks.cluster.connection import RankConnections, carry, connect, list_nodes, require_head
from tasks.ranks.cluster.machine import JobBundle, Machine
from tasks.ranks.cluster.node import NodeRanks, collect_portable
from tasks.ranks.launchers import Nodes
from tasks.ranks.launchers.torchrun import make_rendezvous
from tasks.records.run import NodeEntry, NodesFile
from training.process.failure import FAILURES
from training.process.files import write_json
from training.process.heartbeat import NUM_WORDS, open_words

PACKAGE = "ray"

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_LOOKS_AT_BLOCKS = 1.0
"""Whoever measures wants it quiet."""
_SECONDS_FOR_THE_OTHERS = 3.0
"""After the end of one rank: what the others say decides who was first."""
_SECONDS_TO_FINISH = 30.0
_LOCAL = Nodes(num_nodes=1, address="local", wait_seconds=60.0, silence_seconds=30.0)


def start(config: Path, *, nodes: Nodes | None = None, **options: Any) -> launchers.Launch:
    """Start the ranks: what every launcher offers, with the options of Launcher."""
    return _Launch(config, nodes=nodes or _LOCAL, **options)


class _Launch:
    """What a launcher returns. All that goes on between the machines is done by one thread, which ends with `stop`."""

    def __init__(
        self, config: Path, *, nodes: Nodes, world_size: int, threads_per_rank: int, log_folder: Path,
        arguments: Sequence[str] = (), module: str = "training",
    ) -> None:  # fmt: skip
        log_folder.mkdir(parents=True, exist_ok=True)
        self.log_folder = log_folder
        self._config, self._nodes, self._arguments, self._module = config, nodes, list(arguments), module
        self._world_size, self._threads = world_size, threads_per_rank
        self._who = f"cell {json.loads(config.read_bytes()).get('cell', '?')}"
        self._rendezvous = log_folder.resolve() / "rendezvous"
        self._is_serving = "--serve" in self._arguments
        self._machines: list[Machine] = []
        self._lines: list[Any] = []
        self._codes: dict[int, int] = {}
        """Rank -> how it ended, in that order; not of those that were ended."""
        self._ended: set[int] = set()
        self._heartbeat: memoryview | None = None
        self._problem: Exception | None = None
        self._is_over, self._wants_stacks, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._grace_seconds = 0.0
        """That the ranks have once `_stop` is set."""
        connect(nodes.address)
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether ranks run or machines are waited for; raises the StageError of one that refuses or is lost."""
        if self._problem is not None:
            raise self._problem
        return not self._is_over.is_set()

    def stop(self, *, grace_seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Ask the ranks to save and end; after the grace time end them. Then gather the logs."""
        if not self._stop.is_set():
            self._grace_seconds = grace_seconds
            self._stop.set()
        try:
            while self._thread.is_alive():
                meanwhile()
                self._thread.join(_SECONDS_BETWEEN_LOOKS)
        finally:
            self._grace_seconds = 0.0
            self._thread.join()

    def ask_for_stacks(self) -> None:
        """Have the ranks on other machines write their Python stacks to their logs."""
        self._wants_stacks.set()

    def exit_code(self) -> int:
        """Return 0, or the exit code of the rank that caused the end (negative: the signal that ended it)."""
        cause = self._find_cause()
        return self._codes[cause] if cause is not None else int(len(self._codes) < self._world_size)

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return the rank that caused the end, its exit code and last words, and where the whole logs are."""
        rank = self._find_cause() if rank is None else rank
        if rank is None:
            return f"the ranks were ended; logs in {self.log_folder}"
        code, words = self._codes.get(rank, 0), self.read_last_words(rank)
        return format_end(f"rank {rank}", code, words=words, folder=self.log_folder)

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        file = next(self.log_folder.glob(f"node-*/{rank}/stderr.log"), None)
        return read_last_lines(file) if file else ""

    def find_killed_rank(self) -> int | None:
        """Return a rank that a signal ended, and not ours."""
        return next((rank for rank, code in self._codes.items() if code < 0), None)

    def _find_cause(self) -> int | None:
        killed = self.find_killed_rank()
        return killed if killed is not None else next((rank for rank, code in self._codes.items() if code), None)

    def _run(self) -> None:
        try:
            self._place()
            if not self._stop.is_set():
                self._begin()
            self._follow()
        except Exception as error:
            self._problem = error
        self._is_over.set()
        while not self._stop.wait(_SECONDS_BETWEEN_LOOKS):
            with contextlib.suppress(Exception):
                self._look()
        try:
            self._end()
        except Exception as error:
            self._problem = self._problem or error

    def _place(self) -> None:
        """Put an actor on every machine, the first one on this; the same machines for every cell."""
        wanted, deadline, has_asked = self._nodes.num_nodes, time.monotonic() + self._nodes.wait_seconds, False
        while len(nodes := list_nodes()) < wanted:
            if time.monotonic() > deadline:
                import ray

                raise ResourceError(
                    f"{self._who}: {len(nodes)} of {wanted} machines are in the Ray cluster after "
                    f"{self._nodes.wait_seconds:.0f} s; on each of the others: RAY_AUTH_MODE=token ray start "
                    f"--address={ray.get_runtime_context().gcs_address} (docs/ray.md)"
                )
            if not has_asked:
                _log.warning("%s: waiting for Ray to have %d machines", self._who, wanted)
                has_asked = True
            if self._stop.wait(1.0):
                return
        for number, there in enumerate(nodes[:wanted]):
            silence, who = self._nodes.silence_seconds, self._who
            machine = Machine(there, NodeRanks, who=who, number=number, silence_seconds=silence, stop=self._stop)
            self._machines.append(machine)
            if self._is_serving and number > 0:
                self._lines.append(machine.make(RankConnections, threads=len(self._list_ranks(machine)) + 1))

    def _list_ranks(self, machine: Machine) -> range:
        size = self._world_size // self._nodes.num_nodes
        return range(machine.number * size, (machine.number + 1) * size)

    def _begin(self) -> None:
        """Bring every machine what it lacks, then start all ranks."""
        bundle = JobBundle(self._config) if self._nodes.num_nodes > 1 else None
        own = {"python": sys.executable, "cwd": os.getcwd(), "environment": dict(os.environ)}
        own["logs"] = str(self.log_folder.resolve() / "node-0")
        payloads: list[dict[str, Any]] = [{"config": None, "own": own}]
        packages = bundle.packages if bundle is not None else []
        for machine in self._machines:
            files = bundle.files if bundle is not None and machine.number > 0 else {}
            folder = machine.prepare(files, like=self._machines[0].facts, packages=packages)
            if bundle is not None and machine.number > 0:
                payloads.append({"config": bundle.make_config(folder), "own": None})
                _log.info("%s: %s joins, %s", self._who, machine.name, machine.address)
        environment = self._make_environment()
        for machine, own_config in zip(self._machines, payloads, strict=True):
            ranks, words = list(self._list_ranks(machine)), self._make_words(machine)
            if self._nodes.num_nodes > 1:
                environment |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), machine.facts["interface"])
            machine.ask("start", ranks, words, environment, world_size=self._world_size, **own_config)

    def _make_environment(self) -> dict[str, str]:
        payload = collect_portable() | {"WORLD_SIZE": str(self._world_size), "OMP_NUM_THREADS": str(self._threads)}
        # As ranks of torchrun have it, beside which these may be timed.
        payload["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        payload |= NO_SHARED_STORE
        if self._nodes.num_nodes == 1:
            return payload | make_rendezvous(self._rendezvous)
        address = self._machines[0].address
        with socket.create_server((address, 0)) as connection:
            return {**payload, "MASTER_ADDR": address, "MASTER_PORT": str(connection.getsockname()[1])}

    def _make_words(self, machine: Machine) -> list[str]:
        """Return what the Python of this machine is told, its files in the place of the stage's."""
        words = ["-m", self._module, "--config", str(self._config), *self._arguments]
        if machine.number > 0:
            words[3] = "CONFIG"
            if "--heartbeat" in words:
                words[words.index("--heartbeat") + 1] = "HEARTBEAT"
            if self._is_serving:
                lines, at = self._lines[machine.number - 1], words.index("--serve") + 1
                for rank in self._list_ranks(machine):
                    text = (lines, rank, words[at])
                    threading.Thread(target=carry, args=text, name="line", daemon=True).start()
                words[at] = machine.get(lines.get_address.remote())
        return words

    def _follow(self) -> None:
        """Return when all ranks have ended, or a while after one has failed; raise if a machine is lost."""
        failed_at = None
        for machine in self._machines:
            machine.heard_at = time.monotonic()
        while not self._stop.is_set():
            self._look()
            if len(self._codes) == self._world_size:
                return
            if any(self._codes.values()):
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > _SECONDS_FOR_THE_OTHERS:
                    return
            self._stop.wait(_SECONDS_BETWEEN_LOOKS_AT_BLOCKS if self._is_serving else _SECONDS_BETWEEN_LOOKS)

    def _look(self) -> None:
        """Take in what every machine says, and ask anew; whoever is not asked for long takes it for the end."""
        import ray

        require_head(self._who, seconds=self._nodes.silence_seconds)
        for machine in self._machines:
            if self._wants_stacks.is_set():
                machine.actor.ask_for_stacks.remote()
            machine.asked = machine.asked or machine.actor.look.remote()
            if ray.wait([machine.asked], timeout=0)[0]:
                self._take(machine.get(machine.asked))
                machine.asked, machine.heard_at = None, time.monotonic()
            elif time.monotonic() - machine.heard_at > machine.silence_seconds:
                raise machine.lose(f"nothing from it for {machine.silence_seconds:.0f} s")
        self._wants_stacks.clear()

    def _take(self, said: dict[str, Any]) -> None:
        self._ended |= said["codes"].keys()
        if not self._stop.is_set() or self._grace_seconds > 0:
            self._codes |= {rank: code for rank, code in said["codes"].items() if rank not in self._codes}
        if said["at"] and "--heartbeat" in self._arguments:
            file = Path(self._arguments[self._arguments.index("--heartbeat") + 1])
            self._heartbeat = self._heartbeat or open_words(file)
            for rank, words in said["at"].items():
                self._heartbeat[rank * NUM_WORDS : (rank + 1) * NUM_WORDS] = array("q", words)
        for failure in said["failures"]:
            at = time.monotonic() - failure.pop("seconds_ago")
            write_json(self._config.parent / FAILURES / f"rank-{int(failure['rank'])}.json", {**failure, "at": at})

    def _end(self) -> None:
        """End the ranks, gather the logs, and write down what the machines are."""
        import ray

        there = [machine for machine in self._machines if not machine.is_lost]
        if self._grace_seconds > 0 and self._problem is None and there:
            asked = [machine.actor.ask_to_stop.remote() for machine in there]
            ray.wait(asked, num_returns=len(there), timeout=self._nodes.silence_seconds)
            asked_at = time.monotonic()
            while time.monotonic() - asked_at < self._grace_seconds and len(self._ended) < self._world_size:
                self._look()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        answers = [machine.actor.finish.remote() for machine in there]
        if waited := [*answers, *(line.close.remote() for line in self._lines)]:
            ray.wait(waited, num_returns=len(waited), timeout=_SECONDS_TO_FINISH)
        for machine, answer in zip(there, answers, strict=True):
            with contextlib.suppress(ray.exceptions.RayError):
                said = ray.get(answer, timeout=0.1)
                machine.facts["gpu_energy_joules"] = said["gpu_energy_joules"]
                for name, content in said["logs"].items():
                    file = self.log_folder / f"node-{machine.number}" / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
        shutil.rmtree(self._rendezvous, ignore_errors=True)
        if self._nodes.num_nodes > 1 and all("versions" in machine.facts for machine in self._machines):
            own: dict[str, Any] = {"gpu_energy_joules": None, "num_ranks": self._world_size // self._nodes.num_nodes}
            nodes = [NodeEntry(**own | machine.facts) for machine in self._machines]
            NodesFile(nodes=nodes).write(self._config.parent)
        with contextlib.suppress(Exception):
            require_head(self._who, seconds=self._nodes.silence_seconds)
            for actor in [*self._lines, *(machine.actor for machine in self._machines)]:
                ray.kill(actor)
