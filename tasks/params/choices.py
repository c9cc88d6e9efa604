"""What params.yaml may choose from: the files of a folder, what stands in such a file, and names of one's own."""

import ast
import difflib
import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parents[2]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a comparison or a model may be called."""
_CELL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""DVC takes a dot for the way into a section: `cells.a.b` would be b of the cell a."""
_BASE = "base"
"""So the base model is called beside the cells, in evaluation.json and in tables."""


def list_file_names(folder: str) -> list[str]:
    """Return the names that a folder of the project offers: its Python files, without importing them."""
    return sorted(file.stem for file in (_PROJECT / folder).glob("*.py") if not file.stem.startswith("_"))


def require_name(key: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{key}: got {value[:80]!r}; allowed: letters, digits, '.', '_' and '-', at most 64, "
            "starting with a letter or digit"
        )


def require_cell_name(name: str) -> None:
    """Raise ValueError unless a cell can be called so, in every file and table that tells cells by their names."""
    if not _CELL_NAME.fullmatch(name) or name == _BASE:
        raise ValueError(
            f"cells: got {name[:80]!r}; allowed: letters, digits, '_' and '-', at most 64, starting with a letter or "
            f"digit, and not {_BASE}, as the base model is called beside the cells"
        )


def require_one_of(key: str, value: str, allowed: list[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{key}: got {value[:80]!r}{suggest(value, allowed)}; allowed: {', '.join(allowed)}")


def suggest(value: str, allowed: Sequence[str]) -> str:
    """Return the nearest of what is allowed as a question in parentheses; nothing where none is near."""
    lower = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(value.lower(), lower, n=1)
    return f" (did you mean {lower[near[0]]}?)" if near else ""


def require_package(key: str, name: str, file: str) -> None:
    """Raise ValueError unless the PACKAGE of the file, if it names one, can be imported."""
    package = read_constant(file, "PACKAGE")
    if package is not None and importlib.util.find_spec(package) is None:
        raise ValueError(f"{key}: got {name}, and the package {package} is not installed; `make extras` installs it")


def read_unit(workload: str) -> str:
    """Return what the workload's throughput counts, token or image: UNIT in its file."""
    return str(_read_of_workload(workload, "UNIT"))


def has_prompts(workload: str) -> bool:
    """Return whether every row of the workload is a prompt with a response: HAS_PROMPTS in its file."""
    return bool(_read_of_workload(workload, "HAS_PROMPTS"))


def has_labels(workload: str) -> bool:
    """Return whether every row of the workload has a class: HAS_LABELS in its file."""
    return bool(_read_of_workload(workload, "HAS_LABELS"))


def _read_of_workload(workload: str, name: str) -> Any:
    return read_constant(f"training/workloads/{workload}.py", name)


def read_constant(file: str, name: str) -> Any:
    """Return the literal that a file of the project calls so, without importing it; None if it has no such."""
    value = _read_assigned(file).get(name)
    return None if value is None else ast.literal_eval(value)


@functools.cache
def _read_assigned(file: str) -> dict[str, ast.expr | None]:
    """Return what the file assigns to each name; params are checked often, and parsing would take most of that."""
    tree = ast.parse((_PROJECT / file).read_text(encoding="utf-8"))
    return {
        ast.unparse(part.targets[0] if isinstance(part, ast.Assign) else part.target): part.value
        for part in tree.body
        if isinstance(part, ast.Assign | ast.AnnAssign)
    }
