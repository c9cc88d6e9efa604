"""A Python with torch, transformers, numpy, scipy, safetensors and what these import, and nothing else."""

import importlib.metadata
import venv
from pathlib import Path

from packaging.requirements import Requirement

_OF_COMMAND_LINES = {"typer"}
"""It needs rich and pydantic, which our stages need too: a module of ours that imports them would go unnoticed."""


def make_bare_python(folder: Path) -> Path:
    """Make it in a folder; return the interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in _needed({"torch", "transformers", "numpy", "scipy", "safetensors"}):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__", "bin"}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    return folder / "bin" / "python"


def _needed(names: set[str]) -> set[str]:
    """Return the packages with all that they require, but for what only their command lines import."""
    found: set[str] = set()
    while names:
        name = names.pop()
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names |= {requirement.name.lower()} - found - _OF_COMMAND_LINES
    return found
