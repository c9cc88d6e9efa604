"""Files found by the names that params.yaml has for them: strategies, workloads, launchers and what goes with them."""

import importlib
import importlib.util
from typing import Any


def import_file(package: str, name: str) -> Any:
    """Return the module of a package's file; ModuleNotFoundError if there is none.

    What it offers is what the package's Protocol says, to which tests/architecture/test_seams.py holds every file.
    """
    return importlib.import_module(f"{package}.{name}")


def has_file(package: str, name: str) -> bool:
    """Return whether a package has a file of that name."""
    return importlib.util.find_spec(f"{package}.{name}") is not None
