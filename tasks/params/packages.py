"""The packages of `make extras` that compute a cell's updates: with another version of one it is another training."""

import contextlib
import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.params.choices import read_constant

if TYPE_CHECKING:  # the launchers need the names alone
    from tasks.params import Params

_ADAPTER, _FOUR_BIT = "training/model/adapter.py", "training/model/four_bit.py"


def list_packages(strategy: str, adapter: Mapping[str, Any] | None) -> list[str]:
    """Return PACKAGE of the strategy's file, of the adapter's where one is trained, and of what rounds its base.

    Most cells have none of them.
    """
    files = [f"training/strategies/{strategy}.py", *[_ADAPTER] * bool(adapter)]
    files += [_FOUR_BIT] * bool(adapter and adapter["base"])
    return [package for file in files if (package := read_constant(file, "PACKAGE")) is not None]


def read_package_versions(params: "Params", cell: str) -> dict[str, str]:
    """Return package -> the version that is installed, of those that compute the cell's updates.

    Not of one that is not installed: nothing is computed with it then.
    """
    found = {}
    adapter = params.train.adapter
    for package in list_packages(params.cells[cell].strategy, adapter.model_dump() if adapter else None):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def describe_spread(params: "Params", cell: str) -> dict[str, Any]:
    """Return all that decides how the cell's updates are computed, for keys: how they are spread, and by what."""
    return {**params.cells[cell].spread, **read_package_versions(params, cell)}
