"""Files found by the names that params.yaml has for them: strategies, workloads, launchers and what goes with them."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any


def import_file(package: str, name: str) -> Any:
    """Return the module of a package's file; ModuleNotFoundError if there is none.

    What it offers is what the package's Protocol says, to which tests/architecture/test_seams.py holds every file.
    """
    return importlib.import_module(f"{package}.{name}")


def has_file(package: str, name: str) -> bool:
    """Return whether a package has a file of that name."""
    return importlib.util.find_spec(f"{package}.{name}") is not None


def find_options(strategy: str) -> Any:
    """Return the options.py of a strategy.

    Its OPTIONS: name -> default of what params.yaml may say under `options`; of several words a tuple, the first the
    default. Its NOT_WITH: values and workloads that it does not go with, as training/combinations.py names them. Its
    PACKAGE, if there is one: what has to be installed.
    """
    return import_file(f"training.strategies.{strategy}", "options")


def list_strategies() -> dict[str, Sequence[str]]:
    """Return every strategy, which is a folder of training/strategies/ -> what it does not go with, in order."""
    folders = pkgutil.iter_modules(importlib.import_module("training.strategies").__path__)
    return {folder.name: find_options(folder.name).NOT_WITH for folder in folders}


def fill_options(strategy: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a strategy, those that are not said by their defaults; TypeError for one it has not."""
    known = find_options(strategy).OPTIONS
    if unknown := sorted(said.keys() - known.keys()):
        raise TypeError(f"options of {strategy}: got {', '.join(unknown)}; allowed: {', '.join(known) or 'none'}")
    return {name: item[0] if isinstance(item, tuple) else item for name, item in known.items()} | dict(said)
