"""Ranks started by Ray: one actor per machine holds the ranks there, the first ones on the stage's own machine.

Ray places the actors, carries files and answers, and ends actors whose driver is gone. What it carries is asked for
with a token, always. A cluster of this machine alone begins and ends with the process.
"""

import atexit
import contextlib
import importlib.util
import json
import logging
import mmap
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tasks.process.failure import ConfigurationError, DistributedError, ResourceError
from tasks.ranks import launchers, node
from tasks.ranks.launchers import Nodes
from tasks.ranks.one_machine import FileRendezvous
from tasks.ranks.parcel import Parcel
from tasks.ranks.rank_logs import read_last_lines
from tasks.records.run import NodeEntry, NodesFile
from training.process.failure import FAILURES
from training.process.files import write_json
from training.process.heartbeat import NUM_WORDS

PACKAGE = "ray"

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 2**24
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_LOOKS_AT_BLOCKS = 1.0
"""Whoever measures wants it quiet."""
_SECONDS_FOR_THE_OTHERS = 3.0
"""After the end of one rank: what the others say decides who was first."""
_SECONDS_TO_PREPARE = 900.0
"""For the digests of a model of many GB on a slow disk."""
_SECONDS_TO_FINISH = 30.0
_LITTLE = 0.001
"""Of a CPU: the ranks of all cells wait side by side on all machines, and Ray must not count them out."""
_LOCAL = Nodes(num_nodes=1, address="local", wait_seconds=60.0, silence_seconds=30.0)
_TOKEN = Path.home() / ".ray" / "auth_token"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start(config: Path, *, nodes: Nodes | None = None, **options: Any) -> launchers.Launch:
    """Start the ranks: what every launcher offers, with the options of Launcher."""
    return _Launch(config, nodes=nodes or _LOCAL, **options)


def _connect(address: str) -> None:
    """Have this process be a driver of the cluster; of one of its own if the address is `local`.

    Not from a thread: such a cluster ends with the thread that started it.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigurationError("launcher: got ray, and the package ray is not installed; `make extras` installs it")
    if PACKAGE in sys.modules and sys.modules[PACKAGE].is_initialized():
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    # Ray gives what it starts less of the cores than others get, which ranks would inherit, and the clock would see.
    os.environ |= {"RAY_worker_niceness": "0"}
    options: dict[str, Any] = {"address": address}
    if address == "local":
        # Under /tmp, since paths of sockets are short. Nobody else may look into it.
        folder = Path(tempfile.mkdtemp(prefix="ddp-ray-", dir="/tmp"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(secrets.token_hex(32))
        # The second has Ray bind what it opens to loopback, as it does where it knows no clusters.
        os.environ |= {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        options |= {"_temp_dir": str(folder), "num_cpus": 1, "num_gpus": 0, "object_store_memory": 100_000_000}
        options |= {"include_dashboard": False}
    elif not any(map(os.environ.get, ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))) and not _TOKEN.is_file():
        raise ConfigurationError(
            f"ray.address={address}: no token; allowed: the cluster's in {_TOKEN} (0600), RAY_AUTH_TOKEN_PATH or "
            "RAY_AUTH_TOKEN; `ray get-auth-token --generate` makes one"
        )
    import ray

    answers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:300]
        raise ResourceError(
            f"ray.address={address}: no cluster that this machine is a node of: {said}; start one: docs/ray.md"
        ) from None
    finally:
        # A stage saves on SIGTERM; Ray would just leave.
        for number, answer in answers.items():
            signal.signal(number, answer)


@dataclass
class _Machine:
    """One node of the cluster that has ranks of the launch, and what was heard from there."""

    node_rank: int
    ranks: list[int]
    actor: Any
    address: str
    facts: dict[str, Any] = field(default_factory=dict)
    asked: Any = None
    """The answer that is being waited for."""
    heard_at: float = 0.0
    is_lost: bool = False

    @property
    def name(self) -> str:
        return f"node {self.node_rank} ({self.facts.get('host', self.address)})"


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
        self._cell = str(json.loads(config.read_bytes()).get("cell", "?"))
        self._rendezvous = FileRendezvous(log_folder.resolve() / "rendezvous")
        self._is_serving = "--serve" in self._arguments
        self._machines: list[_Machine] = []
        self._lines: list[Any] = []
        self._group: Any = None
        self._codes: dict[int, int] = {}
        """Rank -> how it ended, in that order; not of those that were ended."""
        self._ended: set[int] = set()
        self._words: Any = None
        self._problem: Exception | None = None
        self._is_over, self._wants_stacks = threading.Event(), threading.Event()
        self._grace_seconds: float | None = None
        """None until it is to stop."""
        _connect(nodes.address)
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether ranks run or machines are waited for; raises the StageError of one that refuses or is lost."""
        if self._problem is not None:
            raise self._problem
        return not self._is_over.is_set()

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the ranks to save and end; after the grace time end them. Then gather the logs."""
        if self._grace_seconds is None:
            self._grace_seconds = grace_seconds
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
        code = self._codes.get(rank, 0)
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        words = self.read_last_words(rank)
        return f"rank {rank} {ending}; logs in {self.log_folder}" + (f"\n{words}" if words else "")

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        (log,) = [*self.log_folder.glob(f"node-*/{rank}/stderr.log")] or [self.log_folder]
        return read_last_lines(log) if log.is_file() else ""

    def find_killed_rank(self) -> int | None:
        """Return a rank that a signal ended, and not ours."""
        return next((rank for rank, code in self._codes.items() if code < 0), None)

    def _find_cause(self) -> int | None:
        killed = self.find_killed_rank()
        return killed if killed is not None else next((rank for rank, code in self._codes.items() if code), None)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._place()
            self._begin()
            self._follow()
        except Exception as error:
            self._problem = error
        self._is_over.set()
        while self._grace_seconds is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            with contextlib.suppress(Exception):
                self._look()
        try:
            self._end(self._grace_seconds)
        except Exception as error:
            self._problem = self._problem or error

    def _place(self) -> None:
        """Have Ray put an actor on every machine, the first one on this."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # Nobody has to have this project installed.
        ray.cloudpickle.register_pickle_by_value(node)
        here, wanted = ray.get_runtime_context().get_node_id(), self._nodes.num_nodes
        self._group = placement_group(
            [{"CPU": _LITTLE}] * wanted, strategy="STRICT_SPREAD",
            bundle_label_selector=[{"ray.io/node-id": here}, *[{}] * (wanted - 1)],
        )  # fmt: skip
        deadline, has_asked = time.monotonic() + self._nodes.wait_seconds, False
        while self._grace_seconds is None and not self._group.wait(1):
            if time.monotonic() > deadline:
                there = sum(one["Alive"] for one in ray.nodes())
                raise ResourceError(
                    f"cell {self._cell}: {there} of {wanted} machines are in the Ray cluster after "
                    f"{self._nodes.wait_seconds:.0f} s; on each of the others: RAY_AUTH_MODE=token ray start "
                    f"--address={ray.get_runtime_context().gcs_address} (docs/ray.md)"
                )
            if not has_asked:
                _log.warning("%s: waiting for Ray to have %d machines", self._cell, wanted)
                has_asked = True
        if self._grace_seconds is not None:
            return
        ids = placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {one["NodeID"]: one["NodeManagerAddress"] for one in ray.nodes()}
        size = self._world_size // wanted
        for number in range(wanted):
            at = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            actor = ray.remote(node.NodeRanks).options(num_cpus=0, max_restarts=0, scheduling_strategy=at)
            ranks = list(range(number * size, (number + 1) * size))
            made = actor.remote(self._nodes.silence_seconds)
            self._machines.append(_Machine(number, ranks, made, addresses[ids[number]]))
            if self._is_serving and number > 0:
                lines = ray.remote(node.RankLines).options(num_cpus=0, max_concurrency=size + 1, scheduling_strategy=at)
                self._lines.append(lines.remote())

    def _begin(self) -> None:
        """Bring every machine what it lacks, then start all ranks."""
        if self._grace_seconds is not None:
            return
        parcel = Parcel(self._config) if self._nodes.num_nodes > 1 else None
        configs: dict[int, Any] = {0: None}
        for machine in self._machines:
            files = {} if machine.node_rank == 0 or parcel is None else parcel.files
            places = dict(files.values())
            for digest in self._ask(machine, "list_missing", files):
                self._send(machine, digest, Path(places[digest]))
            project = os.getcwd() if machine.node_rank == 0 else None
            told = {"project": project, "node_rank": machine.node_rank, "address": machine.address}
            said = self._ask(machine, "prepare", files, **told)
            machine.facts = said["facts"]
            self._require_fit(machine, said)
            if parcel is not None and machine.node_rank > 0:
                configs[machine.node_rank] = parcel.make_config(Path(said["folder"]))
                _log.info("%s: %s joins, %s", self._cell, machine.name, machine.address)
        environment = self._make_environment()
        own = {"python": sys.executable, "cwd": os.getcwd(), "environment": dict(os.environ)}
        own["logs"] = str(self.log_folder.resolve() / "node-0")
        for machine in self._machines:
            self._ask(
                machine, "start", machine.ranks, self._make_words(machine),
                {**environment, **self._choose_interface(machine)}, world_size=self._world_size,
                config=configs[machine.node_rank], own=None if machine.node_rank else own,
            )  # fmt: skip

    def _require_fit(self, machine: _Machine, said: dict[str, Any]) -> None:
        if said["is_open"]:
            raise ConfigurationError(
                f"cell {self._cell}: {machine.name}: Ray was started there without RAY_AUTH_MODE=token; start it with"
            )
        here, there = self._machines[0].facts["versions"], machine.facts["versions"]
        other = [f"{name} {there.get(name)}, here {here[name]}" for name in here if there.get(name) != here[name]]
        if other:
            raise ConfigurationError(
                f"cell {self._cell}: {machine.name}: other versions than here: {'; '.join(other)}; install "
                "requirements.lock on all machines"
            )

    def _make_environment(self) -> dict[str, str]:
        told = {"WORLD_SIZE": str(self._world_size), "OMP_NUM_THREADS": str(self._threads)}
        # As torchrun has it, beside whose ranks these may be timed.
        told["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        if self._nodes.num_nodes == 1:
            self._rendezvous.make()
            return {**told, **self._rendezvous.environment()}
        address = self._machines[0].address
        with socket.create_server((address, 0)) as plug:
            return {**told, "MASTER_ADDR": address, "MASTER_PORT": str(plug.getsockname()[1])}

    def _choose_interface(self, machine: _Machine) -> dict[str, str]:
        if self._nodes.num_nodes == 1:
            return {}
        return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), machine.facts["interface"])

    def _make_words(self, machine: _Machine) -> list[str]:
        """Return what the Python of this machine is told, its files in the place of the stage's."""
        words = ["-m", self._module, "--config", str(self._config), *self._arguments]
        if machine.node_rank > 0:
            words[3] = "CONFIG"
            if "--heartbeat" in words:
                words[words.index("--heartbeat") + 1] = "HEARTBEAT"
            if self._is_serving:
                lines = self._lines[machine.node_rank - 1]
                at = words.index("--serve") + 1
                for rank in machine.ranks:
                    told = (lines, rank, words[at])
                    threading.Thread(target=self._carry, args=told, name="line", daemon=True).start()
                words[at] = self._get(machine, lines.tell_address.remote())
        return words

    def _carry(self, lines: Any, line: int, address: str) -> None:
        """Carry what the stage asks of a rank on another machine there, and its answers back, until one hangs up."""
        import ray

        with contextlib.suppress(OSError, EOFError, ray.exceptions.RayError):
            first = ray.get(lines.accept.remote(line))
            plug = socket.socket(socket.AF_UNIX)
            plug.connect(address)
            with Connection(plug.detach()) as stage:
                stage.send_bytes(first)
                while True:
                    stage.send_bytes(ray.get(lines.exchange.remote(line, stage.recv_bytes())))

    # ------------------------------------------------------------------ while they run

    def _follow(self) -> None:
        """Return when all ranks have ended, or a while after one has failed; raise if a machine is lost."""
        failed_at = None
        for machine in self._machines:
            machine.heard_at = time.monotonic()
        while self._grace_seconds is None:
            self._look()
            if len(self._codes) == self._world_size:
                return
            if any(self._codes.values()):
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > _SECONDS_FOR_THE_OTHERS:
                    return
            time.sleep(_SECONDS_BETWEEN_LOOKS_AT_BLOCKS if self._is_serving else _SECONDS_BETWEEN_LOOKS)

    def _look(self) -> None:
        """Take in what every machine says, and ask anew; whoever is not asked for long takes it for the end."""
        import ray

        self._require_cluster()
        for machine in self._machines:
            if self._wants_stacks.is_set():
                machine.actor.ask_for_stacks.remote()
            machine.asked = machine.asked or machine.actor.look.remote()
            if ray.wait([machine.asked], timeout=0)[0]:
                self._take(machine, self._get(machine, machine.asked))
                machine.asked, machine.heard_at = None, time.monotonic()
            elif time.monotonic() - machine.heard_at > self._nodes.silence_seconds:
                raise self._make_lost_error(machine, f"nothing from it for {self._nodes.silence_seconds:.0f} s")
        self._wants_stacks.clear()

    def _take(self, machine: _Machine, said: dict[str, Any]) -> None:
        self._ended |= said["codes"].keys()
        if self._grace_seconds is None or self._grace_seconds > 0:
            self._codes |= {rank: code for rank, code in said["codes"].items() if rank not in self._codes}
        if said["at"] and "--heartbeat" in self._arguments:
            file = Path(self._arguments[self._arguments.index("--heartbeat") + 1])
            self._words = self._words or _open_words(file)
            for rank, words in said["at"].items():
                for index, word in enumerate(words):
                    self._words[rank * NUM_WORDS + index] = word
        for failure in said["failures"]:
            at = time.monotonic() - failure.pop("seconds_ago")
            write_json(self._config.parent / FAILURES / f"rank-{int(failure['rank'])}.json", {**failure, "at": at})

    def _require_cluster(self) -> None:
        """Raise if nobody is at the door of the cluster's head: Ray itself would go on waiting for it."""
        import ray

        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=self._nodes.silence_seconds).close()
        except OSError as error:
            raise DistributedError(
                f"cell {self._cell}: the head of the Ray cluster at {host}:{port} is lost: {error.strerror or error}; "
                "all ranks were ended; run again, it goes on from the last checkpoint"
            ) from None

    # ------------------------------------------------------------------ what is asked of a machine

    def _ask(self, machine: _Machine, what: str, *words: Any, **named: Any) -> Any:
        return self._get(machine, getattr(machine.actor, what).remote(*words, **named))

    def _get(self, machine: _Machine, answer: Any) -> Any:
        """Return the answer; raises the StageError of a machine that is lost, or what went wrong there."""
        import ray

        deadline = time.monotonic() + _SECONDS_TO_PREPARE
        while True:
            try:
                return ray.get(answer, timeout=1.0)
            except ray.exceptions.GetTimeoutError:
                self._require_cluster()
            except ray.exceptions.RayTaskError as error:
                said = " ".join(str(error.cause).split())[:500]
                raise DistributedError(f"cell {self._cell}: {machine.name}: {said}; run again") from error
            except ray.exceptions.RayError as error:
                raise self._make_lost_error(machine, " ".join(str(error).split())[:300]) from None
            if self._grace_seconds is not None or time.monotonic() > deadline:
                raise self._make_lost_error(machine, "no answer")

    def _send(self, machine: _Machine, digest: str, file: Path) -> None:
        left = file.stat().st_size
        with file.open("rb") as opened:
            while True:
                content = opened.read(_CHUNK_BYTES)
                left -= len(content)
                self._ask(machine, "write", digest, content, is_last=left <= 0)
                if left <= 0:
                    return

    def _make_lost_error(self, machine: _Machine, why: str) -> DistributedError:
        machine.is_lost = True
        return DistributedError(
            f"cell {self._cell}: {machine.name} is lost: {why}; all ranks were ended; run again, it goes on from the "
            "last checkpoint"
        )

    # ------------------------------------------------------------------ the end

    def _end(self, grace_seconds: float) -> None:
        """End the ranks, gather the logs, and write down what the machines are."""
        import ray

        there = [machine for machine in self._machines if not machine.is_lost]
        if grace_seconds > 0 and self._problem is None:
            ray.wait(
                [machine.actor.ask_to_stop.remote() for machine in there], num_returns=len(there), timeout=grace_seconds
            )
            deadline = time.monotonic() + grace_seconds
            while time.monotonic() < deadline and len(self._ended) < self._world_size:
                self._look()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        answers = {machine.node_rank: machine.actor.finish.remote() for machine in there}
        lines = [one.close.remote() for one in self._lines]
        waited = [*answers.values(), *lines]
        ray.wait(waited, num_returns=len(waited), timeout=_SECONDS_TO_FINISH) if waited else None
        for machine in there:
            with contextlib.suppress(ray.exceptions.RayError):
                said = ray.get(answers[machine.node_rank], timeout=0.1)
                machine.facts["gpu_energy_joules"] = said["gpu_energy_joules"]
                for name, content in said["logs"].items():
                    file = self.log_folder / f"node-{machine.node_rank}" / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
        shutil.rmtree(self._rendezvous.folder, ignore_errors=True)
        if self._nodes.num_nodes > 1 and all("versions" in machine.facts for machine in self._machines):
            facts = [
                {"gpu_energy_joules": None, **machine.facts, "num_ranks": len(machine.ranks)}
                for machine in self._machines
            ]
            NodesFile(nodes=[NodeEntry(**one) for one in facts]).write(self._config.parent)
        with contextlib.suppress(Exception):
            self._require_cluster()
            for actor in [*self._lines, *(machine.actor for machine in self._machines)]:
                ray.kill(actor)
            ray.util.remove_placement_group(self._group)


def _open_words(heartbeat: Path) -> memoryview:
    """Return the memory in which the stage's watchdog looks for the ranks."""
    with heartbeat.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")
