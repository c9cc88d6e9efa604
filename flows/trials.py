"""Trials of a search: what each is, where it lives, and several of them trained at the same time."""

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ddp_audit.process.redaction import redact
from flows.child import make_environment
from flows.pipeline import StageFailed
from tasks.inputs.snapshot import select_values
from tasks.machine.facts import collect_machine_facts
from tasks.params import Params, load_params
from tasks.params.search import Configuration
from tasks.process.failure import ConfigurationError, DataError, ExitCode, StageError
from tasks.ranks.cluster.connection import connect, list_nodes
from tasks.ranks.cluster.machine import Machine
from tasks.records.manifests import BaseModelManifest, InputsFile, MachineFile, SlicesManifest
from tasks.records.run import RunFile, read_segment
from tasks.rehearsal.largest import settle_micro_batch
from tasks.train import PlannedSegment, plan_segments
from training.process.files import digest_json, write_json
from training.record.environment import collect_decisive_environment
from training.state.receipt import DROPPED, find_receipt_problem

_log = logging.getLogger(__name__)

TRIALS = Path(".work/search/trials")
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_TO_SAVE = 60.0
"""That a stage of a search that was killed may take to save."""
_SECONDS_TO_BE_SEEN = 90.0
"""That a shared folder may hide what another machine has made in it; NFS does for a minute."""
_SILENCE_SECONDS = 30.0
_DIVERGED = "diverged-{}.txt"
_OTHERS = "others.json"
_SEEN = Path(".work/search/seen")
"""What a machine has to see of this one's folder."""


def read_command(stage: str, cell: str = "", others: Mapping[str, object] | None = None) -> list[str]:
    """Return a stage's command as dvc.yaml has it, where every path stands; `others`: options with another value."""
    entry = YAML(typ="safe").load(Path("dvc.yaml"))["stages"][stage]
    words = shlex.split(entry.get("do", entry)["cmd"].replace("${key}", cell))[1:]
    words += [word for name, value in (others or {}).items() for word in (f"--{name}", str(value))]
    return [sys.executable, *words]


def find_path(stage: str, option: str, cell: str = "") -> Path:
    """Return the path that dvc.yaml gives a stage behind an option."""
    words = read_command(stage, cell)
    return Path(words[words.index(f"--{option}") + 1])


def change_raw_params(given: Mapping[str, Any], changes: Mapping[str, Any], cells: Mapping[str, str]) -> dict[str, Any]:
    """Return a params.yaml with changes to its section `train` and other cells: name -> the cell that it is like.

    It may stand in another folder, and has no tracker: the search sends what is finished, below its own run.
    """
    raw = {key: value for key, value in given.items() if key not in ("search", "upload")}
    for section in ("model", "dataset"):
        raw[section] = dict(raw[section])
        for key, value in raw[section].items():
            if isinstance(value, str) and value.startswith("path:"):
                raw[section][key] = f"path:{Path(value.removeprefix('path:')).absolute()}"
    others = {name: raw["cells"][like] for name, like in cells.items()}
    return {**raw, "train": {**raw["train"], **changes}, "cells": others, "tracking": {"kind": "none"}}


def write_inputs(folder: Path, raw: Mapping[str, Any], snapshot: Path, *, without: str = "") -> dict[str, object]:
    """Write what a stage works on that has other params than the comparison's own; return the options that say so.

    All that is no param is as in the `snapshot` of the comparison's stage, but for the dependency `without`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {"params": folder / "params.yaml", "inputs": folder / "inputs.json"}
    files["params"].write_text(json.dumps(raw, indent=1), encoding="utf-8")
    inputs = InputsFile.read(snapshot)
    values, deps = select_values(load_params(files["params"]), list(inputs.params)), [*inputs.deps]
    InputsFile(params=values, code=inputs.code, deps=[path for path in deps if path != without]).write(files["inputs"])
    return dict(files)


class Stage:
    """The stage of a trial, one at a time: on this machine, or in an actor, to which Ray sends this class as it is."""

    def __init__(self, _silence_seconds: float = 0.0) -> None:
        self._process: Any = None

    def prepare(self, project: str, file: str, text: str) -> dict[str, Any] | None:
        """Return what this machine is; None if a file of the project has not that text here."""
        seen = Path(project) / file
        if not seen.is_file() or seen.read_text() != text:
            return None
        os.chdir(project)
        sys.path.insert(0, project)
        from tasks.machine.facts import collect_node_facts

        is_open = os.environ.get("RAY_AUTH_MODE") != "token"
        return {"is_open": is_open, "facts": collect_node_facts(node_rank=0, address="")}

    def start(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        """Start it in the folder of its trial; raises ResourceError if one is there already that does not end."""
        from tasks.process.failure import ResourceError
        from tasks.process.stopping import STARTER

        deadline = time.monotonic() + _SECONDS_TO_SAVE
        with (folder / "lock").open("a") as lock, (folder / "trial.log").open("ab") as log:
            while True:
                try:
                    # Whoever inherits the file holds the lock until its end, on whatever machine.
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ResourceError(f"{folder}: another search trains there; run again later") from None
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=[lock.fileno()], env={**environment, STARTER: str(os.getpid())},
            )  # fmt: skip

    def poll(self) -> Any:
        """Return its exit code; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Have it save and end."""
        from flows.child import end_group

        end_group(self._process)


@dataclass(frozen=True, kw_only=True)
class TrialSlot:
    """Where one trial at a time trains: on this machine, or in turn on every machine of a Ray cluster.

    Machines of a cluster see the folder of the comparison under the same path, so that nothing has to be carried.
    """

    name: str
    """Of its machine."""
    turn: int
    """Its number there."""
    ask: Callable[..., Any]
    """Given the name of a method of Stage and what that takes; returns what it does."""


def open_slots(address: str, *, at_once: int) -> list[TrialSlot]:
    """Return as many slots: on this machine if the address is `local`, else in turn on those of the cluster.

    Raises ConfigurationError for a machine that sees another folder, is of another kind, or has other versions or no
    token.
    """
    if address == "local":

        def ask(stage: Stage, what: str, *words: Any) -> Any:
            return getattr(stage, what)(*words)

        return [TrialSlot(name="this machine", turn=turn, ask=partial(ask, Stage())) for turn in range(at_once)]
    connect(address)
    nodes, text, here = list_nodes(), secrets.token_hex(), collect_machine_facts()
    if min(at_once, len(nodes)) > 1 and re.search("GPU-|MIG-", os.environ.get("CUDA_VISIBLE_DEVICES", "")):
        raise ConfigurationError("search: CUDA_VISIBLE_DEVICES names GPUs of this machine alone; use their numbers")
    _SEEN.parent.mkdir(parents=True, exist_ok=True)
    _SEEN.write_text(text)
    slots = []
    for number in range(at_once):
        turn, node = divmod(number, len(nodes))
        machine = Machine(
            nodes[node], Stage, who="search", number=node, silence_seconds=_SILENCE_SECONDS, stop=threading.Event()
        )
        said = machine.ask("prepare", os.getcwd(), str(_SEEN), text)
        if said is None:
            raise ConfigurationError(
                f"search: {machine.name} does not see the folder {os.getcwd()} of this machine; allowed: one that all "
                "machines of the cluster share, or ray.address: local"
            )
        machine.require_fit(said, like=here.versions)
        num_gpus = len(here.gpus)
        own, its = (_describe_kind(facts, num_gpus=num_gpus) for facts in (here.model_dump(), machine.facts))
        # This machine is like itself, whatever GPUs Ray was started with.
        if node and (other := [f"{what} {its[what]}, here {own[what]}" for what in own if its[what] != own[what]]):
            raise ConfigurationError(
                f"search: {machine.name} is of another kind: {'; '.join(other)}; allowed: machines of one kind, or "
                "ray.address: local"
            )
        slots.append(TrialSlot(name=machine.name, turn=turn, ask=machine.ask))
    return slots


def _describe_kind(facts: Mapping[str, Any], *, num_gpus: int) -> dict[str, Any]:
    """Return what a trial's numbers and seconds depend on, of as many GPUs as are used of a machine.

    `facts`: of a machine (tasks/machine/facts.py).
    """
    gpus = ", ".join(gpu["name"] for gpu in facts["gpus"][:num_gpus]) or "none"
    return {"GPUs": gpus, "driver": facts["driver"], "CPU": facts["cpu"]}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a search."""

    name: str
    configuration: Configuration
    cell: str
    """The cell of params.yaml that says how it is spread."""
    raw: dict[str, Any]
    """Its params.yaml."""
    params: Params
    """The same, validated."""
    segments: list[PlannedSegment]
    """Of all rungs."""

    @classmethod
    def plan(
        cls, name: str, configuration: Configuration, changes: Mapping[str, Any], *, cell: str, given: Mapping[str, Any]
    ) -> "Trial":
        """Return the trial that has these `changes` in its section `train`; `given`: params.yaml of the search."""
        raw = change_raw_params(given, changes, {cell: cell})
        machine, base_model = MachineFile.read(find_path("train", "machine")), find_path("train", "base-model")
        params = settle_micro_batch(Params.model_validate(raw), machine=machine, base_model=base_model)
        segments = plan_segments(
            cell, params, slices=SlicesManifest.read(find_path("train", "slices")).slices,
            base_model=BaseModelManifest.read(base_model).digest, machine=machine.digest,
        )  # fmt: skip
        return cls(name=name, configuration=configuration, cell=cell, raw=raw, params=params, segments=segments)

    @property
    def folder(self) -> Path:
        """Where it is kept: the fingerprint of its last segment holds all that it depends on but the environment.

        Variables that change numbers are in no segment's, and no gate holds trials together.
        """
        name, environment = self.segments[-1].fingerprint, collect_decisive_environment()
        return TRIALS / (f"{name}-{digest_json(environment)[:12]}" if environment else name)

    @property
    def log(self) -> Path:
        """What its processes have said."""
        return self.folder / "trial.log"

    def read_problem(self, epochs: int) -> str | None:
        """Return why it diverged on the way to a rung of so many epochs, as it said; None if it has not."""
        file = self.folder / _DIVERGED.format(epochs)
        return file.read_text(encoding="utf-8") if file.exists() else None

    def locate_run(self, epochs: int) -> Path:
        """Return the folder of its run up to so many epochs."""
        return self.folder / f"epochs-{epochs}"

    def is_finished(self, epochs: int) -> bool:
        """Return whether it was trained so far, and every byte of that is still what its receipts say.

        If the folder of its run has segments of another trial, the stage links its own there anew.
        """
        folder, parts = self.locate_run(epochs), self.segments[:epochs]
        try:
            entries = RunFile.read(folder).segments
            linked = [read_segment(folder / entry.folder).fingerprint for entry in entries]
        except DataError:
            return False
        wanted = [part.fingerprint for part in parts]
        return linked == wanted == [entry.fingerprint for entry in entries] and not any(
            find_receipt_problem(
                self.folder / "work" / "segments" / part.fingerprint, fingerprint=part.fingerprint,
                may_lack=DROPPED[self.params.train.keep],
            )
            for part in parts
        )  # fmt: skip

    def note_others(self, epochs: int, number: int) -> None:
        """Note that so many other trials train on its machine now, of each segment that is not finished by then."""
        noted = self.read_others()
        for part in self.segments[:epochs]:
            if not (self.folder / "work" / "segments" / part.fingerprint).exists():
                noted[part.fingerprint] = max(number, noted.get(part.fingerprint, 0))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _OTHERS, noted)

    def read_others(self) -> dict[str, int]:
        """Return fingerprint of a segment -> most other trials that trained on its machine meanwhile, where known."""
        noted: Any = None
        with contextlib.suppress(OSError, RecursionError, ValueError):
            noted = json.loads((self.folder / _OTHERS).read_bytes())
        items = noted.items() if isinstance(noted, dict) else ()
        return {part: number for part, number in items if isinstance(number, int)}

    def start(self, epochs: int, slot: TrialSlot, devices: Sequence[str]) -> None:
        """Start the stage that trains it so far, which goes on from what is finished or saved."""
        options = write_inputs(self.folder, self.raw, find_path("train", "inputs", self.cell))
        options |= {"work": self.folder / "work", "run": self.locate_run(epochs), "segments": epochs}
        # The lock of a machine bears TMPDIR in its name: the search holds it, and every trial one of its own.
        scratch = (self.folder / "tmp").absolute()
        scratch.mkdir(exist_ok=True)
        num_ranks = self.params.cells[self.cell].world_size
        chosen = [devices[(slot.turn * num_ranks + rank) % len(devices)] for rank in range(num_ranks if devices else 0)]
        own = {"TMPDIR": str(scratch), **({"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(chosen))} if chosen else {})}
        command = read_command("train", self.cell, options)
        slot.ask("start", command, make_environment(sys.executable) | own, self.folder)

    def end(self, code: int, epochs: int) -> None:
        """Note how its process ended; raises the StageError that it ended with, but for one that diverged."""
        if code == ExitCode.DIVERGED:
            (self.folder / _DIVERGED.format(epochs)).write_text(self.read_last_line(), encoding="utf-8")
            _log.warning("%s: out of the search: %s", self.name, self.read_problem(epochs))
        elif code != ExitCode.OK:
            raise StageFailed(f"{self.name}: {self.read_last_line()} (its log: {self.log})", code)
        else:
            deadline, file = time.monotonic() + _SECONDS_TO_BE_SEEN, RunFile.path_in(self.locate_run(epochs))
            while not file.exists() and time.monotonic() < deadline:
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def read_last_line(self) -> str:
        """Return what its process said last."""
        lines = redact(self.log.read_bytes()[-4000:].decode("utf-8", "replace")).splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def run_trials(trials: Sequence[Trial], epochs: int, *, slots: Sequence[TrialSlot], devices: Sequence[str]) -> None:
    """Train every trial up to so many epochs, one in each slot; raises StageFailed for one that fails.

    `devices`: the GPUs of a machine, which are dealt out by turns. Trials that still run when this is left are asked
    to save, and end.
    """
    waiting = [trial for trial in trials if not (trial.read_problem(epochs) or trial.is_finished(epochs))]
    _log.info("to epoch %d: %d of %d trials are there already", epochs, len(trials) - len(waiting), len(trials))
    running: dict[int, Trial] = {}
    next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
    try:
        while waiting or running:
            for number, slot in enumerate(slots):
                if waiting and number not in running:
                    trial = waiting.pop(0)
                    there = [trial, *(other for place, other in running.items() if slots[place].name == slot.name)]
                    for other in there:
                        other.note_others(epochs, len(there) - 1)
                    _log.info("%s: to epoch %d on %s, with %s", trial.name, epochs, slot.name, trial.configuration)
                    trial.start(epochs, slot, devices)
                    running[number] = trial
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for number in list(running):
                if (code := slots[number].ask("poll")) is not None:
                    running.pop(number).end(code, epochs)
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
                for trial in running.values():
                    _log.info("%s: %s", trial.name, trial.read_last_line())
    finally:
        for number in running:
            with contextlib.suppress(StageError):
                slots[number].ask("end")
