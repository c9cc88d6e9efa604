"""params.yaml rewritten by a command, with its remarks: cells moved to `left_out`, and keys that are set."""

import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from tasks.params import Params, load_params
from tasks.params.complaint import describe_first_complaint
from tasks.params.saved import save_beside
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError
from training.process.files import replace_file

_WIDTH = 1000


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
    value, told = _make_round_trip().load(path.read_text(encoding="utf-8")), []
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
        place[last] = _read_value(text)
        told.append(f"{key}: {before} -> {place[last]}")
    # Beside it: whatever the schema looks for relative to the file is found there.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", encoding="utf-8") as trial:
        _make_round_trip().dump(value, trial)
        trial.flush()
        try:
            load_params(Path(trial.name), looks_at_data=False)
        except ConfigurationError as error:
            raise ConfigurationError(f"-S: {str(error).removeprefix(f'{trial.name}: ')}") from None
    _write(path, value)
    return told


def _read_value(text: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        raise ConfigurationError(
            f"-S: got the value {text[:80]!r}; allowed: YAML, with quotes around words with signs"
        ) from None


def _make_round_trip() -> YAML:
    yaml = YAML(typ="rt")
    yaml.Representer = _Representer
    yaml.width, yaml.preserve_quotes = _WIDTH, True
    return yaml


def _write(path: Path, value: Any) -> None:
    text = io.StringIO()
    _make_round_trip().dump(value, text)
    with replace_file(path) as file:
        file.write_text(text.getvalue(), encoding="utf-8")


class _Representer(RoundTripRepresenter):
    """Writes null as a word, as our files do, and not as nothing."""


def _write_null(representer: RoundTripRepresenter, _: None) -> ScalarNode:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(type(None), _write_null)
