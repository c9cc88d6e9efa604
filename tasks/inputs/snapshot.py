"""One snapshot of everything that a run works on: taken by the stage `fingerprint`, held by every stage after it.

Of each stage of dvc.yaml one file says the values of its params, with their defaults, what it depends on, and the
digests of what is source of that. It is a dependency of its stage, so that DVC records what the run began with,
whatever becomes of params.yaml until the stage ends; and a stage that finds anything else fails and records nothing.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tasks.params import Params, load_params
from tasks.process.failure import ConfigurationError, DataError
from tasks.process.logs import configure_logging
from tasks.ranks import checks
from tasks.records.manifests import InputsFile
from training.process.files import digest_file
from training.record.environment import collect_decisive_environment

_REMEDY = "run again: make compare; what is finished and still fits is kept"
_PARAMS = Path("params.yaml")
_PIPELINE = Path("dvc.yaml")
_SOURCES = ("ddp_audit", "tasks", "training")
_ABSENT = "nothing"
_OF_SOURCES = ["model.source", "model.revision", "model.norm", "dataset", "workload"]


def select_values(params: Params, keys: list[str]) -> dict[str, Any]:
    """Return key -> value, as JSON and with defaults, for keys such as `train` or `model.name`."""
    sections = params.model_dump(mode="json")
    values = {}
    for key in keys:
        value: Any = sections
        for part in key.split(".", 1):
            value = value.get(part) if isinstance(value, dict) else None
        values[key] = value
    return values


def select_sources(params: Params) -> dict[str, Any]:
    """Return what says where rows and base model come from, and what becomes of them, whichever rows are asked for."""
    return select_values(params, _OF_SOURCES)


def make_parser(stage: str, description: str | None, *places: str) -> argparse.ArgumentParser:
    """Return the parser of a stage's command line, which names where it finds and leaves its files."""
    parser = argparse.ArgumentParser(prog=f"tasks.{stage}", description=description)
    for place in places:
        parser.add_argument(f"--{place}", type=Path, required=True)
    parser.add_argument("--inputs", type=Path, help="what this run works on (tasks/inputs/snapshot.py)")
    parser.add_argument("--params", type=Path, default=_PARAMS, help="in place of params.yaml: a trial's of a search")
    return parser


@dataclass(frozen=True)
class Stage:
    """A stage as dvc.yaml has it."""

    name: str
    """With its cell, if it has one: `train@2proc`."""
    params: list[str]
    deps: list[str]


def read_stages(params: Params) -> Iterator[Stage]:
    """Yield the stages of dvc.yaml, those that are one per cell for each cell."""
    for name, entry in YAML(typ="safe").load(_PIPELINE)["stages"].items():
        for cell in params.cells if "foreach" in entry else [None]:
            result = entry if cell is None else entry["do"]
            named = (result.get("params", []) + result.get("meta", {}).get("optional", []), result.get("deps", []))
            keys, deps = ([part.replace("${key}", str(cell)) for part in parts] for parts in named)
            yield Stage(name if cell is None else f"{name}@{cell}", keys, deps)


@dataclass(frozen=True)
class Snapshot:
    """What one stage may work on in this run; without a file, as by hand, there is nothing to hold anything against."""

    file: Path | None
    params: dict[str, Any] = field(default_factory=dict)
    """Key -> value."""
    code: dict[str, str] = field(default_factory=dict)
    """Source file -> sha256."""
    deps: list[str] = field(default_factory=list)
    """Files and folders that it depends on."""
    seen: dict[Path, tuple[int, int, int]] = field(default_factory=dict)
    """Every file of them that is no source -> what shows that it was not written since."""
    params_file: Path = _PARAMS
    """Of a trial of a search it is its own."""
    environment: dict[str, str] = field(default_factory=collect_decisive_environment)
    """Variable -> value as the stage begins; what it runs later sets some of them for itself."""

    @classmethod
    def begin(cls, file: Path | None, params_file: Path = _PARAMS) -> tuple["Snapshot", Params]:
        """Return what the stage works on, with params.yaml, as `read` and `load_params` do, and have its log shown."""
        configure_logging()
        snapshot = cls.read(file, params_file)
        return snapshot, snapshot.load_params()

    @classmethod
    def read(cls, file: Path | None, params_file: Path = _PARAMS) -> "Snapshot":
        """Return what the file holds, with a look at everything that the stage depends on."""
        if file is None:
            return cls(None, params_file=params_file)
        inputs = InputsFile.read(file)
        snapshot = cls(file, inputs.params, inputs.code, inputs.deps, _stat_files(inputs.deps), params_file)
        checks.append(snapshot.require_code)
        return snapshot

    def load_params(self) -> Params:
        """Return params.yaml, once it and the code are what the run began with; raises ConfigurationError else."""
        params = load_params(self.params_file)
        self._require_params(params)
        self.require_code()
        return params

    def require_unchanged(self) -> None:
        """Raise a StageError in one line that names what is not what the stage has worked with.

        To be called before anything is written that others will take for the result of what the run began with.
        """
        if self.file is None:
            return
        # Not the sources under `path:`, which may be gone by now: what was read of them stands in the outputs.
        self._require_params(load_params(self.params_file, looks_at_data=False))
        self.require_code()
        now = _stat_files(self.deps)
        if changed := sorted(str(path) for path in {*self.seen, *now} if now.get(path) != self.seen.get(path)):
            raise DataError(f"{_describe_changes(changed)} changed while this run was going; {_REMEDY}")

    def _require_params(self, params: Params) -> None:
        now, then = (dict(walk_leaves(values)) for values in (select_values(params, list(self.params)), self.params))
        changes = [
            f"{key} {_describe_value(then.get(key, _ABSENT))} -> {_describe_value(now.get(key, _ABSENT))}"
            for key in {**then, **now}
            if then.get(key, _ABSENT) != now.get(key, _ABSENT)
        ]
        if changes:
            raise ConfigurationError(
                f"params.yaml changed while this run was going: {_describe_changes(changes)}; {_REMEDY}"
            )

    def require_code(self) -> None:
        """Raise ConfigurationError unless the source files are what they were when the run began."""
        now = digest_sources(self.deps)
        if changed := sorted(path for path in {*self.code, *now} if now.get(path) != self.code.get(path)):
            raise ConfigurationError(f"{_describe_changes(changed)} changed while this run was going; {_REMEDY}")


def digest_sources(places: Iterable[str]) -> dict[str, str]:
    """Return path -> sha256 of every source file of the project at or below these places of a stage's `deps`."""
    return {str(file): digest_file(file) for file in _list_files(places) if file.parts[0] in _SOURCES}


def _stat_files(places: Iterable[str]) -> dict[Path, tuple[int, int, int]]:
    """Return file -> modification time, size and inode of all other files there."""
    facts = {file: file.stat() for file in _list_files(places) if file.parts[0] not in _SOURCES}
    return {file: (fact.st_mtime_ns, fact.st_size, fact.st_ino) for file, fact in facts.items()}


def _list_files(places: Iterable[str]) -> list[Path]:
    results = (file for place in map(Path, places) for file in (place.rglob("*") if place.is_dir() else [place]))
    return sorted(file for file in results if file.is_file() and "__pycache__" not in file.parts)


def walk_leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of all that stands in mappings, and in lists of mappings; another list is one value."""
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        value = dict(enumerate(value))
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from walk_leaves(part, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _describe_value(value: Any) -> str:
    text = value if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _describe_changes(changes: list[str]) -> str:
    return changes[0] if len(changes) == 1 else f"{changes[0]} and {len(changes) - 1} more"
