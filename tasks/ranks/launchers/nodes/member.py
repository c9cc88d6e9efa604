"""One launch on a node that is not the head: from what it is told to the logs that it sends."""

import contextlib
import datetime
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, SOCK_STREAM, socket
from typing import Any

from tasks.process.failure import ConfigurationError, StageError
from tasks.process.lock import lock_machine
from tasks.ranks.launchers.nodes.line import Line, LostError, knock, relay
from tasks.ranks.launchers.nodes.parcel import unpack
from tasks.ranks.launchers.nodes.route import look_up_route
from tasks.ranks.launchers.nodes.topology import collect_node_facts, compute_energy_since, read_gpu_energy_joules
from tasks.ranks.one_machine import Place, RanksHere
from tasks.ranks.watchdog import Watchdog
from training.process.failure import FAILURES, read_failures
from training.process.files import write_json

_log = logging.getLogger(__name__)

_WORK = Path(".work/nodes")
_LAUNCHES_KEPT = 5
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_WORDS = 0.2
_LONGEST_STEP = 1e9
"""This node's watchdog judges nobody: the head sees all ranks."""


class Member:
    """This node's part of a launch."""

    def __init__(self, line: Line, told: dict[str, Any], *, head: tuple[str, int], key: str) -> None:
        self._line = line
        self._told = told
        self._head = head
        self._key = key
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")
        self._work = (_WORK / f"{stamp}-node-{told['node_rank']}").resolve()
        self._ranks_here = range(
            told["node_rank"] * told["ranks_per_node"], (told["node_rank"] + 1) * told["ranks_per_node"]
        )
        self._launch: RanksHere | None = None
        self._told_failures: set[int] = set()
        self._has_told_end = False
        self._spoke_at = 0.0

    def serve(self) -> None:
        """Take part until the head says that it is over, or is gone; whatever runs here then is ended."""
        name = f"node {self._told['node_rank']} of a comparison on {self._head[0]}"
        self._work.mkdir(parents=True)
        try:
            watchdog = Watchdog(
                world_size=self._told["world_size"], step_seconds=_LONGEST_STEP, ranks_heard=len(self._ranks_here)
            )
            with lock_machine(name), watchdog as dog:
                try:
                    self._take_part(dog)
                finally:
                    if self._launch is not None:
                        self._launch.stop(grace_seconds=0.0)
                    dog.end_ranks()
        except StageError as error:
            _log.error("%s: %s", name, error)
            with contextlib.suppress(LostError):
                self._line.say(refused=str(error), exit_code=int(error.exit_code))
        except LostError as error:
            _log.warning("%s: the head is gone (%s); everything here was ended", name, error)
        finally:
            self._line.close()
            self._forget_old()

    def _take_part(self, dog: Watchdog) -> None:
        told = self._told
        config = unpack(told["parcel"], self._line, work=self._work)
        address, interface = look_up_route(*self._head)
        facts = collect_node_facts(node_rank=told["node_rank"], address=address, interface=interface)
        _require_same_versions(facts["versions"], told["versions"])
        write_json(self._work / "config.json", config)
        energy = read_gpu_energy_joules()
        self._line.say(ready=facts)
        with contextlib.ExitStack() as stack:
            arguments = self._adapt_arguments(told["arguments"], dog, stack)
            while (message := self._hear()) is None or "close" not in message:
                dog.look()
                if message is not None:
                    self._handle_message(message, dog, arguments, address, interface)
                self._tell(dog)
        if self._launch is not None:
            self._launch.stop(grace_seconds=0.0)
        dog.end_ranks()
        self._send_logs()
        self._line.say(closed={"gpu_energy_joules": compute_energy_since(energy)})

    def _hear(self) -> dict[str, Any] | None:
        message = self._line.hear(_SECONDS_BETWEEN_LOOKS)
        if time.monotonic() - self._line.heard_at > self._told["silence_seconds"]:
            raise LostError(f"nothing for {self._told['silence_seconds']:.0f} s")
        return message

    def _handle_message(
        self, message: dict[str, Any], dog: Watchdog, arguments: Sequence[str], address: str, interface: str
    ) -> None:
        told = self._told
        if "clock" in message:
            self._line.say(clock=time.monotonic())
        elif "go" in message:
            place = Place(
                node_rank=told["node_rank"], num_nodes=told["num_nodes"], endpoint=message["go"],
                launch_id=told["launch"], address=address, interface=interface,
            )  # fmt: skip
            self._launch = RanksHere(
                self._work / "config.json", world_size=told["world_size"], threads_per_rank=told["threads_per_rank"],
                log_folder=self._work / "logs", arguments=arguments, module=told["module"], place=place,
            )  # fmt: skip
        elif "stop" in message and self._launch is not None:
            self._launch.ask_to_stop()
        elif "stacks" in message:
            dog.ask_for_stacks()

    def _tell(self, dog: Watchdog) -> None:
        """Say where the ranks are, who failed and whether all have ended; saying something is also a sign of life."""
        now = time.monotonic()
        if now - self._spoke_at < _SECONDS_BETWEEN_WORDS:
            return
        self._spoke_at = now
        failures = [one for one in read_failures(self._work / FAILURES) if one["rank"] not in self._told_failures]
        self._told_failures |= {one["rank"] for one in failures}
        words: dict[str, Any] = {"at": {rank: dog.read_words(rank) for rank in self._ranks_here}}
        if failures:
            words["failures"] = failures
        self._line.say(**words)
        if self._launch is not None and not self._launch.is_running and not self._has_told_end:
            self._has_told_end = True
            self._line.say(ended=self._launch.exit_code())

    def _adapt_arguments(self, arguments: Sequence[str], dog: Watchdog, stack: contextlib.ExitStack) -> list[str]:
        """Return the ranks' arguments with the files of this machine in the place of the head's."""
        own = list(arguments)
        if "--heartbeat" in own:
            own[own.index("--heartbeat") + 1] = str(dog.file)
        if "--serve" in own:
            folder = tempfile.mkdtemp(prefix="ddp-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            door = socket(AF_UNIX, SOCK_STREAM)
            # Only that wakes a thread that waits there.
            stack.callback(_shut, door)
            door.bind(f"{folder}/line")
            door.listen(len(self._ranks_here))
            threading.Thread(target=self._connect_ranks, args=(door,), name="ranks", daemon=True).start()
            own[own.index("--serve") + 1] = f"{folder}/line"
        return own

    def _connect_ranks(self, door: socket) -> None:
        """Give every rank that comes a line of its own to the head, where the stage waits for it."""
        for _ in self._ranks_here:
            try:
                plug, _ = door.accept()
            except OSError:
                return
            line = knock(self._head, self._key)
            if line is None:
                plug.close()
                continue
            line.say(rank_of=self._told["launch"])
            relay(line.leave(), plug)

    def _send_logs(self) -> None:
        for file in sorted((self._work / "logs").rglob("*")):
            if file.is_file():
                self._line.say(file=file.relative_to(self._work / "logs").as_posix())
                self._line.say_bytes(file.read_bytes())

    def _forget_old(self) -> None:
        for old in sorted(_WORK.glob("*-node-*"))[:-_LAUNCHES_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _shut(door: socket) -> None:
    with contextlib.suppress(OSError):
        door.shutdown(SHUT_RDWR)
    door.close()


def _require_same_versions(here: dict[str, Any], there: dict[str, Any]) -> None:
    different = [f"{name} {here.get(name)}, there {there[name]}" for name in there if here.get(name) != there[name]]
    if different:
        raise ConfigurationError(
            f"other versions than on the head: {'; '.join(different)}; install requirements.lock on all nodes"
        )
