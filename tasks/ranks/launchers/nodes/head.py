"""A launch on several nodes, seen from the head: gathers them, starts all, and knows how each of them is."""

import json
import logging
import mmap
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tasks.process.failure import DistributedError, StageError
from tasks.ranks.launchers import Nodes
from tasks.ranks.launchers.nodes.gathering import Gathering
from tasks.ranks.launchers.nodes.line import get_head_key, parse_address
from tasks.ranks.launchers.nodes.lobby import open_lobby
from tasks.ranks.launchers.nodes.other import OtherNode
from tasks.ranks.launchers.nodes.parcel import pack
from tasks.ranks.launchers.nodes.route import find_free_port, look_up_route
from tasks.ranks.launchers.nodes.topology import collect_node_facts, compute_energy_since, read_gpu_energy_joules
from tasks.ranks.one_machine import Place, RanksHere
from tasks.ranks.rank_logs import RankLogs
from tasks.records.run import NodeEntry, NodesFile

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_TO_PREPARE = 900.0
"""For the digests of a model of many GB on a slow disk."""
_SECONDS_FOR_THE_OTHERS = 3.0
"""After the end of one node's ranks: what the others say decides who was first."""
_SECONDS_FOR_LOGS = 20.0
_SECONDS_BETWEEN_SIGNS = 1.0


class SeveralNodes:
    """What a launcher returns, for ranks on several nodes: node 0 is this machine, and has the first ranks.

    All that goes on between the nodes is done by one thread, which ends with `stop`.
    """

    def __init__(
        self,
        config: Path,
        *,
        nodes: Nodes,
        world_size: int,
        threads_per_rank: int,
        log_folder: Path,
        arguments: Sequence[str] = (),
        module: str = "training",
    ) -> None:
        """Wait for the nodes, in the background, and start `python -m module --config config *arguments` on all."""
        self.log_folder = log_folder
        log_folder.mkdir(parents=True, exist_ok=True)
        self._config = config
        self._nodes = nodes
        self._ranks_per_node = world_size // nodes.num_nodes
        self._spread: dict[str, Any] = {
            "world_size": world_size,
            "threads_per_rank": threads_per_rank,
            "module": module,
        }
        self._arguments = list(arguments)
        self._launch_id = uuid.uuid4().hex
        self._cell: str = json.loads(config.read_bytes())["cell"]
        self._gathering = Gathering(nodes, cell=self._cell)
        self._words = _open_heartbeat(self._arguments)
        self._others: list[OtherNode] = []
        self._own: RanksHere | None = None
        self._own_facts: dict[str, Any] = {}
        self._problem: Exception | None = None
        self._is_over = threading.Event()
        self._is_asked_for_stacks = threading.Event()
        self._grace_seconds: float | None = None
        """None until it is to stop."""
        self._signed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether ranks run or nodes are waited for; raises the StageError of a node that refuses or is lost."""
        if self._problem is not None:
            raise self._problem
        return not self._is_over.is_set()

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the ranks of all nodes to save and end; after the grace time end them. Then gather the nodes' logs."""
        if self._grace_seconds is None:
            self._grace_seconds = grace_seconds
        self._thread.join()

    def ask_for_stacks(self) -> None:
        """Have the ranks of the other nodes write their Python stacks to their logs."""
        self._is_asked_for_stacks.set()

    def exit_code(self) -> int:
        """Return 0, or the exit code of the rank that caused the end."""
        if (killed := self.find_killed_rank()) is not None:
            cause = self._get_logs(killed // self._ranks_per_node).find_root_cause()
            assert cause is not None
            return cause[1]
        own = 1 if self._own is None else self._own.exit_code()
        return next((code for code in [own, *(other.exit_code or 0 for other in self._others)] if code), 0)

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return the rank that caused the end, its exit code and last words, and where the whole logs are."""
        rank = self.find_killed_rank() if rank is None else rank
        if rank is not None:
            return self._get_logs(rank // self._ranks_per_node).explain_end(rank=rank)
        ended = [other.node_rank for other in self._others if other.exit_code]
        is_own = self._own is None or self._own.exit_code() != 0 or not ended
        return self._get_logs(0 if is_own else ended[0]).explain_end()

    def read_last_words(self, rank: int) -> str:
        """Return the end of what the rank wrote on its standard error."""
        return self._get_logs(rank // self._ranks_per_node).read_last_words(rank)

    def find_killed_rank(self) -> int | None:
        """Return a rank that a signal ended, on whatever node."""
        killed = (self._get_logs(node_rank).find_killed_rank() for node_rank in range(self._nodes.num_nodes))
        return next((rank for rank in killed if rank is not None), None)

    def _get_logs(self, node_rank: int) -> RankLogs:
        return RankLogs(self._get_log_folder(node_rank), first_rank=node_rank * self._ranks_per_node)

    def _get_log_folder(self, node_rank: int) -> Path:
        return self.log_folder / f"node-{node_rank}"

    def _run(self) -> None:
        try:
            self._own_energy = read_gpu_energy_joules()
            self._gather()
            self._begin()
            self._follow()
        except Exception as error:
            self._problem = error
        self._is_over.set()
        # torchrun ends with the thread that started it.
        while self._grace_seconds is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._say_alive()
        self._end(self._grace_seconds)

    # ------------------------------------------------------------------ until all run

    def _gather(self) -> None:
        """Wait for as many nodes as are missing, and have them show that they have what it takes."""
        lobby = open_lobby(self._nodes.rendezvous, get_head_key())
        if "--serve" in self._arguments:
            lobby.ways[self._launch_id] = self._arguments[self._arguments.index("--serve") + 1]
        host, port = parse_address(self._nodes.rendezvous)
        address, interface = look_up_route(host, port)
        if ip_address(address).is_loopback:
            _log.warning("%s is this machine's own loopback %s, to which no other machine can come", host, address)
        self._own_facts = collect_node_facts(node_rank=0, address=address, interface=interface)
        lines = self._gathering.lines(lobby, is_over=lambda: self._grace_seconds is not None)
        parcel = pack(json.loads(self._config.read_bytes()))
        for node_rank, (line, said) in enumerate(lines, start=1):
            other = OtherNode(
                node_rank, line, host=said["host"], cell=self._cell, ranks_per_node=self._ranks_per_node,
                words=self._words,
            )  # fmt: skip
            self._others.append(other)
            other.tell(
                parcel, launch=self._launch_id, num_nodes=self._nodes.num_nodes, ranks_per_node=self._ranks_per_node,
                arguments=self._arguments, versions=self._own_facts["versions"],
                silence_seconds=self._nodes.silence_seconds, **self._spread,
            )  # fmt: skip
        self._pump_until(lambda: all(other.facts for other in self._others), "get ready")
        for other in self._others:
            other.ask_clock()
            _log.info("%s: node %d is %s", self._cell, other.node_rank, other)
        self._pump_until(lambda: all(other.has_clock for other in self._others), "say the time")

    def _begin(self) -> None:
        if self._grace_seconds is not None:
            return
        address = self._own_facts["address"]
        endpoint = f"{address}:{find_free_port(address)}"
        place = Place(
            node_rank=0, num_nodes=self._nodes.num_nodes, endpoint=endpoint, launch_id=self._launch_id,
            address=address, interface=self._own_facts["interface"],
        )  # fmt: skip
        self._own = RanksHere(
            self._config, log_folder=self._get_log_folder(0), arguments=self._arguments, place=place, **self._spread
        )
        for other in self._others:
            other.start_ranks(endpoint)

    # ------------------------------------------------------------------ while they run

    def _follow(self) -> None:
        """Return when the ranks of all nodes have ended, or those of one with a failure; raise if a node is lost."""
        failed_at = None
        while self._grace_seconds is None and self._own is not None:
            self._pump(self._nodes.silence_seconds)
            codes = [None if self._own.is_running else self._own.exit_code(), *(one.exit_code for one in self._others)]
            if all(code is not None for code in codes):
                return
            if any(codes) and failed_at is None:
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() - failed_at > _SECONDS_FOR_THE_OTHERS:
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _pump_until(self, is_done: Callable[[], bool], doing: str) -> None:
        deadline = time.monotonic() + _SECONDS_TO_PREPARE
        while not is_done() and self._grace_seconds is None:
            if time.monotonic() > deadline:
                raise DistributedError(
                    f"cell {self._cell}: a node did not {doing} in {_SECONDS_TO_PREPARE:.0f} s; run again"
                )
            self._pump(_SECONDS_TO_PREPARE)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _pump(self, silence_seconds: float) -> None:
        """Take in what the nodes say, and say that the head is there."""
        self._say_alive()
        if self._is_asked_for_stacks.is_set():
            self._is_asked_for_stacks.clear()
            for other in self._others:
                other.ask_for_stacks()
        for other in self._others:
            other.listen(self._config.parent, silence_seconds)

    def _say_alive(self) -> None:
        if time.monotonic() - self._signed_at > _SECONDS_BETWEEN_SIGNS:
            self._signed_at = time.monotonic()
            for other in self._others:
                other.say_alive()

    # ------------------------------------------------------------------ the end

    def _end(self, grace_seconds: float) -> None:
        """End the ranks of all nodes, gather the logs, and write down what the nodes are."""
        try:
            if grace_seconds > 0 and self._own is not None:
                self._own.ask_to_stop()
                for other in self._others:
                    other.ask_to_stop()
                self._wait_for_end(grace_seconds)
            for other in self._others:
                other.close_launch()
        finally:
            if self._own is not None:
                self._own.stop(grace_seconds=0.0)
            for other in self._others:
                other.gather(self._get_log_folder(other.node_rank), seconds=_SECONDS_FOR_LOGS)
        if self._own is not None:
            own = {**self._own_facts, "gpu_energy_joules": compute_energy_since(self._own_energy)}
            facts = [own, *(other.facts for other in self._others)]
            nodes = [NodeEntry(**one, num_ranks=self._ranks_per_node) for one in facts]
            NodesFile(nodes=nodes).write(self._config.parent)

    def _wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._problem is None:
            try:
                self._pump(self._nodes.silence_seconds)
            except StageError:
                return
            if not (self._own and self._own.is_running) and all(one.exit_code is not None for one in self._others):
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _open_heartbeat(arguments: Sequence[str]) -> memoryview | None:
    """Return the memory in which the stage's watchdog looks for the ranks; None where it has none."""
    if "--heartbeat" not in arguments:
        return None
    with Path(arguments[list(arguments).index("--heartbeat") + 1]).open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")
