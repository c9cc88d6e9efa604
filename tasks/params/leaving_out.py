"""Cells that a comparison leaves out: moved from `cells` to `left_out` in params.yaml, each with its reason."""

import io
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from tasks.params import Params
from tasks.params.complaint import describe_first_complaint
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError
from training.process.files import replace_file

_SAVED_SUFFIX = ".saved"
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
    round_trip = YAML(typ="rt")
    round_trip.Representer = _Representer
    round_trip.width, round_trip.preserve_quotes = _WIDTH, True
    value = round_trip.load(path.read_text(encoding="utf-8"))
    for name, reason in reasons.items():
        del value["cells"][name]
        value.setdefault("left_out", {})[name] = reason
    text = io.StringIO()
    round_trip.dump(value, text)
    shutil.copyfile(path, path.with_name(path.name + _SAVED_SUFFIX))
    with replace_file(path) as file:
        file.write_text(text.getvalue(), encoding="utf-8")


class _Representer(RoundTripRepresenter):
    """Writes null as a word, as our files do, and not as nothing."""


def _write_null(representer: RoundTripRepresenter, _: None) -> ScalarNode:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(type(None), _write_null)
