"""params.yaml rewritten by a command, with its remarks: cells moved to `left_out`, and keys that are set."""

import difflib
import io
import itertools
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from tasks.params import Params, load_params
from tasks.params.choices import suggest
from tasks.params.search import Configuration
from tasks.params.section import describe_first_complaint
from tasks.params.strict_yaml import read_strict_yaml
from tasks.params.train import AUTO
from tasks.process.failure import ConfigurationError
from training.process.files import replace_file

_WIDTH = 1000
_NULL = "tag:yaml.org,2002:null"
_PRESETS, _ACTIVE = Path("presets"), Path("params.yaml")


def find_refused(path: Path) -> dict[str, str]:
    """Return cell -> why it cannot be part of the comparison, each looked at by itself; raises ConfigurationError."""
    try:
        value = read_strict_yaml(path)
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    cells = value.get("cells")
    refused: dict[str, str] = {}
    for name, cell in (cells if isinstance(cells, dict) else {}).items():
        try:
            Params.model_validate({**value, "cells": {name: cell}})
        except ValidationError as error:
            refused[name] = describe_first_complaint(error, Params)
    if cells and len(refused) == len(cells):
        # What is wrong is no cell's own.
        raise ConfigurationError(f"{path}: {next(iter(refused.values()))}")
    return refused


def move_out(path: Path, reasons: Mapping[str, str]) -> None:
    """Rewrite the file with these cells under `left_out`, all else as it was; it is saved beside itself first."""
    value = _make_round_trip().load(path.read_text(encoding="utf-8"))
    left_out = value.setdefault("left_out", CommentedMap())
    # Reasons have colons, which DVC cannot read within brackets.
    left_out.fa.set_block_style()
    for name, reason in reasons.items():
        del value["cells"][name]
        left_out[name] = reason
    save_beside(path)
    _write(path, value)


def change_params(path: Path, changes: Sequence[str]) -> list[str]:
    """Set each `KEY=VALUE` in the file, such as train.learning_rate=1e-3, and return what each did, in words.

    A key goes down by dots; the value is YAML. Raises ConfigurationError, with the file as it was, for what is no such
    change, and for what the schema refuses.
    """
    load_params(path, looks_at_data=False)
    value, payload = _make_round_trip().load(path.read_text(encoding="utf-8")), []
    for change in changes:
        key, sign, text = change.partition("=")
        *sections, last = key.strip().split(".")
        if not sign or not all([*sections, last]):
            raise ConfigurationError(f"-S: got {change[:80]!r}; allowed: KEY=VALUE, such as train.learning_rate=1e-3")
        place = value
        for section in sections:
            # A section that is left out has its defaults.
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ConfigurationError(
                f"-S: {key[:80]} is below a value that is no section; allowed: keys of params.yaml"
            )
        before = place.get(last, "not set")
        try:
            place[last] = YAML(typ="safe", pure=True).load(text)
        except YAMLError:
            raise ConfigurationError(
                f"-S: got the value {text[:80]!r}; allowed: YAML, with quotes around words with signs"
            ) from None
        payload.append(f"{key}: {before} -> {place[last]}")
    # Beside it: whatever the schema looks for relative to the file is found there.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", encoding="utf-8") as trial:
        _make_round_trip().dump(value, trial)
        trial.flush()
        try:
            load_params(Path(trial.name), looks_at_data=False)
        except ConfigurationError as error:
            raise ConfigurationError(f"-S: {str(error).removeprefix(f'{trial.name}: ')}") from None
    _write(path, value)
    return payload


class _Representer(RoundTripRepresenter):
    """Writes null as a word, as our files do, and not as nothing."""


_Representer.add_representer(type(None), lambda representer, _: representer.represent_scalar(_NULL, "null"))


def _make_round_trip() -> YAML:
    yaml = YAML(typ="rt")
    yaml.Representer = _Representer
    yaml.width, yaml.preserve_quotes = _WIDTH, True
    return yaml


def _write(path: Path, value: Any) -> None:
    with replace_file(path) as file:
        _make_round_trip().dump(value, file)


def use_preset(name: str, *, saves: bool = True) -> str:
    """Write presets/<name>.yaml into params.yaml and return what was done, and what it still lacks.

    With `saves` a params.yaml of one's own making is kept beside it first. Raises ConfigurationError for an unknown
    name.
    """
    presets = {file.stem: file for file in sorted(_PRESETS.glob("*.yaml"))}
    if name not in presets:
        raise ConfigurationError(f"PRESET: got {name!r}{suggest(name, [*presets])}; allowed: {', '.join(presets)}")
    load_params(presets[name], looks_at_data=False)
    said = f"params.yaml is now {presets[name]}"
    active = _ACTIVE.read_bytes() if _ACTIVE.is_file() else None
    if saves and active is not None and active not in [file.read_bytes() for file in presets.values()]:
        said += f"; yours was saved as {save_beside(_ACTIVE)}"
    # Not through a link, which may lead to a preset of one's own.
    with replace_file(_ACTIVE) as file:
        shutil.copyfile(presets[name], file)
    try:
        load_params(_ACTIVE)
    except ConfigurationError as error:
        said += f"; before it can run: {error}"
    return said


def save_beside(file: Path) -> Path:
    """Return a copy of the file beside it: FILE.saved, FILE.saved-2 and so on, none of which is ever written over."""
    for number in itertools.count(1):
        saved = file.with_name(f"{file.name}.saved" + (f"-{number}" if number > 1 else ""))
        if not saved.exists():
            return Path(shutil.copyfile(file, saved))
        if saved.is_file() and saved.read_bytes() == file.read_bytes():
            return saved
    raise AssertionError("numbers have no end")


def make_train_changes(params: Params, drawn: Configuration) -> dict[str, Any]:
    """Return what a trial's section `train` has of its own.

    The schedule runs once over the epochs of the last rung, whichever rung the trial gets to. Micro-batches are such
    that all cells can split them that can split the batch.
    """
    shares = {params.count_shares(cell) for cell in params.cells}
    per_rank = [drawn.batch_size // number for number in shares if drawn.batch_size % number == 0]
    size = params.train.micro_batch_size
    return {
        "epochs": params.search.rungs[-1],
        "schedule_span": "run",
        "learning_rate": drawn.learning_rate,
        "global_batch_size": drawn.batch_size,
        "micro_batch_size": "auto" if size == AUTO else math.gcd(size, *per_rank),
        "weight_decay": drawn.weight_decay,
        "warmup_steps": drawn.warmup_steps,
    }


def make_patch(text: str, changes: Mapping[str, Any]) -> str:
    """Return a unified diff of params.yaml, whose text is given, that puts the changes into its section `train`."""
    value = _make_round_trip().load(text)
    for key, changed in changes.items():
        if key in value["train"]:
            value["train"][key] = changed
        else:
            value["train"].insert(0, key, changed)
    changed_text = io.StringIO()
    _make_round_trip().dump(value, changed_text)
    before, after = (part.splitlines(keepends=True) for part in (text, changed_text.getvalue()))
    diff = difflib.unified_diff(before, after, "a/params.yaml", "b/params.yaml")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff)
