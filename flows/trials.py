"""Trials of a search: what each is, where it lives, and several of them as processes at the same time."""

import json
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from flows.child import end_group, make_environment
from tasks.inputs.snapshot import select_values
from tasks.params import Params, load_params
from tasks.params.search import Configuration
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ExitCode, StageError
from tasks.process.lock import is_taken, make_lock_name
from tasks.process.parent import STARTER
from tasks.records.fingerprint import CodeFile, InputsFile, MachineFile
from tasks.records.run import RunFile
from tasks.records.slices import SlicesManifest
from tasks.records.sources import BaseModelManifest
from tasks.store.kept import mark_used
from tasks.train import PlannedSegment, plan_segments
from training.process.redaction import redact

_log = logging.getLogger(__name__)

TRIALS = Path(".work/search/trials")
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_TO_END = 60.0
"""That a process of a search that was killed may take to save."""
_DIVERGED = "diverged.txt"


class StageCommand(NamedTuple):
    """The command of a stage as dvc.yaml has it, where every path of the pipeline stands."""

    words: list[str]

    @classmethod
    def read(cls, stage: str, cell: str = "") -> "StageCommand":
        """Return the command of the stage, of a cell where there is one for each."""
        entry = YAML(typ="safe").load(Path("dvc.yaml"))["stages"][stage]
        return cls([sys.executable, *shlex.split(entry.get("do", entry)["cmd"].replace("${key}", cell))[1:]])

    def find_path(self, name: str) -> Path:
        """Return the path that stands behind an option."""
        return Path(self.words[self.words.index(name) + 1])

    def replace(self, **paths: Path | int) -> list[str]:
        """Return the command with other values of options, the last of which counts."""
        return [*self.words, *(word for name, path in paths.items() for word in (f"--{name}", str(path)))]


def write_inputs(
    folder: Path, raw: Mapping[str, Any], snapshot: Path, *, without: Sequence[str] = ()
) -> tuple[Path, Path, Params]:
    """Write params.yaml and inputs.json of a stage that works on other params than the comparison's; return both.

    What it depends on beside its params is as in the `snapshot` of the comparison's own stage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "params.yaml", folder / "inputs.json"
    files[0].write_text(json.dumps(_make_paths_absolute(raw), indent=1), encoding="utf-8")
    params, inputs = load_params(files[0]), InputsFile.read(snapshot)
    InputsFile(
        params=select_values(params, list(inputs.params)), code=inputs.code,
        deps=[path for path in inputs.deps if path not in without],
    ).write(files[1])  # fmt: skip
    return *files, params


def _make_paths_absolute(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return params.yaml for another folder: what is local is told relative to the file."""

    def find(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("path:"):
            return f"path:{Path(value.removeprefix('path:')).absolute()}"
        return value

    sections = ("model", "dataset")
    return {**raw, **{name: {key: find(value) for key, value in raw[name].items()} for name in sections}}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a search."""

    name: str
    drawn: Configuration
    cell: str
    """The cell of params.yaml that says how it is spread."""
    command: StageCommand
    raw: dict[str, Any]
    """Its params.yaml."""
    segments: list[PlannedSegment]
    """Of all rungs."""

    @classmethod
    def plan(cls, name: str, drawn: Configuration, changes: Mapping[str, Any], *, cell: str) -> "Trial":
        """Return the trial of params.yaml with `changes` to its section `train`; raises ConfigurationError."""
        command, raw = StageCommand.read("train", cell), read_strict_yaml(Path("params.yaml"))
        kept = {key: value for key, value in raw.items() if key not in ("search", "upload")}
        raw = {
            **kept, "train": {**raw["train"], **changes}, "cells": {cell: raw["cells"][cell]},
            # The search itself sends what is finished, as runs below its own.
            "tracking": {"kind": "none"},
        }  # fmt: skip
        segments = plan_segments(
            cell, Params.model_validate(raw), slices=SlicesManifest.read(command.find_path("--slices")).slices,
            base_model=BaseModelManifest.read(command.find_path("--base-model")).digest,
            code=CodeFile.read(command.find_path("--code")).digest,
            machine=MachineFile.read(command.find_path("--machine")).digest,
        )  # fmt: skip
        return cls(name=name, drawn=drawn, cell=cell, command=command, raw=raw, segments=segments)

    @property
    def folder(self) -> Path:
        """Where all of it is kept: the fingerprint of its last segment holds all that it depends on."""
        return TRIALS / self.segments[-1].fingerprint

    def locate_run(self, epochs: int) -> Path:
        """Return the folder of its run up to so many epochs."""
        return self.folder / f"epochs-{epochs}"

    def is_finished(self, epochs: int) -> bool:
        """Return whether it was trained so far."""
        return RunFile.path_in(self.locate_run(epochs)).exists()

    @property
    def problem(self) -> str | None:
        """Why it diverged, as it said; None if it has not."""
        file = self.folder / _DIVERGED
        return file.read_text(encoding="utf-8") if file.exists() else None

    def start(self, epochs: int, *, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start the stage that trains it so far; it goes on from what is finished or saved."""
        params, inputs, _ = write_inputs(self.folder, self.raw, self.command.find_path("--inputs"))
        scratch = (self.folder / "tmp").absolute()
        scratch.mkdir(exist_ok=True)
        command = self.command.replace(
            params=params, inputs=inputs, work=self.folder / "work", segments=epochs, run=self.locate_run(epochs)
        )
        # The lock of the machine bears TMPDIR in its name: this search holds it, and its trials one each of their own.
        waiting_since = time.monotonic()
        while is_taken(make_lock_name(str(scratch))) and time.monotonic() - waiting_since < _SECONDS_TO_END:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        own = {STARTER: str(os.getpid()), "TMPDIR": str(scratch), **environment}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**make_environment(sys.executable), **own},
            )  # fmt: skip

    @property
    def log(self) -> Path:
        """What its processes have said."""
        return self.folder / "trial.log"

    def end(self, code: int) -> None:
        """Note how its process ended; raises the StageError that it ended with, but for one that diverged."""
        if code == ExitCode.OK:
            mark_used(self.folder)
        elif code == ExitCode.DIVERGED:
            (self.folder / _DIVERGED).write_text(self.read_last_line(), encoding="utf-8")
            _log.warning("%s: out of the search: %s", self.name, self.problem)
        else:
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


def run_trials(trials: Sequence[Trial], epochs: int, *, at_once: int, devices: Sequence[str] = ()) -> None:
    """Train every trial up to so many epochs, some at once; raises StageError for one that fails.

    `devices`: the GPUs of the machine, which are dealt out by turns. Those that still run when this is left are asked
    to save, and end.
    """
    waiting = [trial for trial in trials if not trial.is_finished(epochs) and trial.problem is None]
    _log.info("%d epochs: %d of %d trials are trained already", epochs, len(trials) - len(waiting), len(trials))
    running: dict[int, tuple[Trial, subprocess.Popen[bytes]]] = {}
    next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
    try:
        while waiting or running:
            for slot in (slot for slot in range(at_once) if waiting and slot not in running):
                trial = waiting.pop(0)
                _log.info("%s: to %d epochs: %s", trial.name, epochs, describe(trial.drawn))
                running[slot] = trial, trial.start(epochs, environment=_choose_devices(trial, slot, devices))
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for slot, (trial, process) in list(running.items()):
                if process.poll() is not None:
                    del running[slot]
                    trial.end(process.returncode)
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
                for trial, _ in running.values():
                    _log.info("%s: %s", trial.name, trial.read_last_line())
    finally:
        for _, process in running.values():
            end_group(process)


def _choose_devices(trial: Trial, slot: int, devices: Sequence[str]) -> dict[str, str]:
    """Return the environment in which the trial sees GPUs of its own, as far as there are enough."""
    if not devices:
        return {}
    num_ranks = Params.model_validate(trial.raw).cells[trial.cell].world_size
    chosen = [devices[(slot * num_ranks + rank) % len(devices)] for rank in range(num_ranks)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(chosen))}


def describe(drawn: Configuration) -> str:
    """Return a configuration in words."""
    return (
        f"learning rate {drawn.learning_rate:g}, batch {drawn.batch_size}, weight decay {drawn.weight_decay:g}, "
        f"{drawn.warmup_steps} steps of warm-up"
    )
