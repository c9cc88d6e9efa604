"""Trials of a search: what each is, where it lives, and several of them trained at the same time."""

import contextlib
import json
import logging
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from ddp_audit.process.redaction import redact
from flows.child import make_environment
from flows.places import Place
from tasks.inputs.snapshot import select_values
from tasks.params import Params, load_params
from tasks.params.search import Configuration
from tasks.process.failure import DataError, ExitCode, StageError
from tasks.records.fingerprint import InputsFile, MachineFile
from tasks.records.run import RunFile, read_segment
from tasks.records.slices import SlicesManifest
from tasks.records.sources import BaseModelManifest
from tasks.rehearsal.largest import settle_micro_batch
from tasks.train import PlannedSegment, plan_segments
from training.process.files import digest_json
from training.record.environment import collect_decisive_environment
from training.state.receipt import DROPPED, find_problem

_log = logging.getLogger(__name__)

TRIALS = Path(".work/search/trials")
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_LINES = 30.0
_DIVERGED = "diverged-{}.txt"


def read_command(stage: str, cell: str = "", others: Mapping[str, object] | None = None) -> list[str]:
    """Return a stage's command as dvc.yaml has it, where every path stands; `others`: options with another value."""
    entry = YAML(typ="safe").load(Path("dvc.yaml"))["stages"][stage]
    words = shlex.split(entry.get("do", entry)["cmd"].replace("${key}", cell))[1:]
    return [sys.executable, *words, *(word for name, one in (others or {}).items() for word in (f"--{name}", str(one)))]


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
        raw[section] = {
            key: f"path:{Path(value.removeprefix('path:')).absolute()}"
            if isinstance(value, str) and value.startswith("path:")
            else value
            for key, value in raw[section].items()
        }
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


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a search."""

    name: str
    drawn: Configuration
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
        cls, name: str, drawn: Configuration, changes: Mapping[str, Any], *, cell: str, given: Mapping[str, Any]
    ) -> "Trial":
        """Return the trial that has these `changes` in its section `train`; `given`: params.yaml of the search."""
        raw = change_raw_params(given, changes, {cell: cell})
        params = settle_micro_batch(
            Params.model_validate(raw), machine=MachineFile.read(find_path("train", "machine")),
            base_model=find_path("train", "base-model"),
        )  # fmt: skip
        segments = plan_segments(
            cell, params, slices=SlicesManifest.read(find_path("train", "slices")).slices,
            base_model=BaseModelManifest.read(find_path("train", "base-model")).digest,
            machine=MachineFile.read(find_path("train", "machine")).digest,
        )  # fmt: skip
        return cls(name=name, drawn=drawn, cell=cell, raw=raw, params=params, segments=segments)

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

    @property
    def problem(self) -> str | None:
        """Why it diverged, as it said; None if it has not."""
        found = sorted(self.folder.glob(_DIVERGED.format("*")))
        return found[0].read_text(encoding="utf-8") if found else None

    def has_diverged(self, epochs: int) -> bool:
        """Return whether it diverged on the way to a rung of so many epochs."""
        return (self.folder / _DIVERGED.format(epochs)).exists()

    def locate_run(self, epochs: int) -> Path:
        """Return the folder of its run up to so many epochs."""
        return self.folder / f"epochs-{epochs}"

    def is_finished(self, epochs: int) -> bool:
        """Return whether it was trained so far, and every byte of that is still what its receipts say."""
        places = [(self.folder / "work" / "segments" / part.fingerprint, part) for part in self.segments[:epochs]]
        return self._is_run_its_own(epochs) and not any(
            find_problem(place, fingerprint=part.fingerprint, may_lack=DROPPED[self.params.train.keep])
            for place, part in places
        )

    def _is_run_its_own(self, epochs: int) -> bool:
        """Return whether the folder of its run has the segments of this trial; else the stage links them there anew."""
        folder = self.locate_run(epochs)
        try:
            entries = RunFile.read(folder).segments
            found = [read_segment(folder / entry.folder).fingerprint for entry in entries]
        except DataError:
            return False
        wanted = [part.fingerprint for part in self.segments[:epochs]]
        return found == wanted == [entry.fingerprint for entry in entries]

    def start(self, epochs: int, place: Place, devices: Sequence[str]) -> None:
        """Start the stage that trains it so far, which goes on from what is finished or saved."""
        options = write_inputs(self.folder, self.raw, find_path("train", "inputs", self.cell))
        options |= {"work": self.folder / "work", "run": self.locate_run(epochs), "segments": epochs}
        # The lock of a machine bears TMPDIR in its name: the search holds it, and every trial one of its own.
        scratch = (self.folder / "tmp").absolute()
        scratch.mkdir(exist_ok=True)
        num_ranks = self.params.cells[self.cell].world_size
        chosen = [
            devices[(place.turn * num_ranks + rank) % len(devices)] for rank in range(num_ranks if devices else 0)
        ]
        own = {"TMPDIR": str(scratch), **({"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(chosen))} if chosen else {})}
        command = read_command("train", self.cell, options)
        place.ask("start", command, make_environment(sys.executable) | own, self.folder)

    def end(self, code: int, epochs: int) -> None:
        """Note how its process ended; raises the StageError that it ended with, but for one that diverged."""
        if code == ExitCode.DIVERGED:
            (self.folder / _DIVERGED.format(epochs)).write_text(self.read_last_line(), encoding="utf-8")
            _log.warning("%s: out of the search: %s", self.name, self.problem)
        elif code != ExitCode.OK:
            raise make_stage_error(f"{self.name}: {self.read_last_line()} (all that it said: {self.log})", code)

    def read_last_line(self) -> str:
        """Return what its process said last."""
        lines = redact(self.log.read_bytes()[-4000:].decode("utf-8", "replace")).splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def make_stage_error(message: str, code: int) -> StageError:
    """Return the error of a stage that ended with this exit code."""
    error = StageError(message)
    error.exit_code = ExitCode(code) if code in set(ExitCode) else ExitCode.DISTRIBUTED
    return error


def run_trials(trials: Sequence[Trial], epochs: int, *, places: Sequence[Place], devices: Sequence[str] = ()) -> None:
    """Train every trial up to so many epochs, one in each place; raises StageError for one that fails.

    `devices`: the GPUs of a machine, which are dealt out by turns. Trials that still run when this is left are asked
    to save, and end.
    """
    waiting = [trial for trial in trials if not (trial.has_diverged(epochs) or trial.is_finished(epochs))]
    _log.info("to epoch %d: %d of %d trials are there already", epochs, len(trials) - len(waiting), len(trials))
    running: dict[int, Trial] = {}
    next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
    try:
        while waiting or running:
            for slot in (slot for slot in range(len(places)) if waiting and slot not in running):
                trial = waiting.pop(0)
                _log.info("%s: to epoch %d on %s, with %s", trial.name, epochs, places[slot].name, trial.drawn)
                trial.start(epochs, places[slot], devices)
                running[slot] = trial
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for slot in list(running):
                if (code := places[slot].ask("poll")) is not None:
                    running.pop(slot).end(code, epochs)
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
                for trial in running.values():
                    _log.info("%s: %s", trial.name, trial.read_last_line())
    finally:
        for slot in running:
            with contextlib.suppress(StageError):
                places[slot].ask("end")
