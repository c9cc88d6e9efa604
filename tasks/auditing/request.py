"""What an audit is asked for: which script, on how many ranks, how often."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.process.failure import ConfigurationError

_CELL = "{cell}"
_MOST_RANKS = 64


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is audited, and how."""

    words: tuple[str, ...]
    """The script and its arguments, or `-m` and a module; `{cell}` in an argument stands for the cell's name."""
    folder: Path
    """Where it is started."""
    cells: dict[str, int]
    """Name -> number of ranks; the first is the baseline."""
    python: str
    """The interpreter of the script's own environment."""
    num_launches: int
    """How often each cell is started; an interval needs three."""
    most_steps: int | None
    """A launch is ended after so many optimizer steps; None: the script ends by itself."""
    hang_seconds: float
    """Ranks that do nothing for so long inside a step hang."""

    @property
    def baseline(self) -> str:
        """Name of the first cell."""
        return next(iter(self.cells))

    @property
    def told(self) -> str:
        """The script and its arguments, as they are typed; the script by its place in the folder."""
        return shlex.join([self.words[0].removeprefix(f"{self.folder}/"), *self.words[1:]])

    def words_for(self, cell: str) -> list[str]:
        """Return the script and its arguments for a cell."""
        return [self.words[0], *(word.replace(_CELL, cell) for word in self.words[1:])]


def parse_request(asked: Mapping[str, str]) -> Request:
    """Return what is asked for by SCRIPT, CELLS, FOLDER, INTERPRETER, LAUNCHES, STEPS and HANG_SECONDS.

    Raises ConfigurationError in one line.
    """
    given = {name: value for name, value in asked.items() if value.strip()}
    if "SCRIPT" not in given:
        raise ConfigurationError(
            'SCRIPT is missing; allowed: a Python script and its arguments, such as make audit SCRIPT="train.py '
            '--epochs 2" CELLS=1,2'
        )
    folder = Path(given.get("FOLDER", ".")).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigurationError(f"FOLDER={given['FOLDER']} is no folder; give the one that the script is started in")
    return Request(
        words=_parse_words(given["SCRIPT"], folder),
        folder=folder,
        cells=_parse_cells(given.get("CELLS", "1,2")),
        python=_find_python(given.get("INTERPRETER", sys.executable)),
        num_launches=_parse_number("LAUNCHES", given.get("LAUNCHES", "3"), least=1),
        most_steps=_parse_number("STEPS", given["STEPS"], least=2) if "STEPS" in given else None,
        hang_seconds=_parse_number("HANG_SECONDS", given.get("HANG_SECONDS", "600"), least=1),
    )


def _parse_words(script: str, folder: Path) -> tuple[str, ...]:
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise ConfigurationError(
            f"SCRIPT={script!r} cannot be read ({error}); quote it as for a shell, such as SCRIPT=\"train.py --name 'a "
            "b'\""
        ) from None
    while words and Path(words[0]).name.startswith("python"):
        del words[0]
    if not words:
        raise ConfigurationError(
            "SCRIPT names no script; allowed: a Python file or -m and a module, then its arguments"
        )
    if words[0] in ("torchrun", "accelerate", "deepspeed") or words[:2] == ["-m", "torch.distributed.run"]:
        raise ConfigurationError(
            f"SCRIPT begins with {words[0]}, which the audit does itself; give the script and its arguments alone"
        )
    if words[0] == "-m" and len(words) > 1:
        return tuple(words)
    if not (folder / words[0]).is_file():
        raise ConfigurationError(
            f"SCRIPT: {words[0]} is no file of {folder}; give its path from there, or the folder as FOLDER=..."
        )
    return (str((folder / words[0]).absolute()), *words[1:])


def _parse_cells(cells: str) -> dict[str, int]:
    parts = [part.strip() for part in cells.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,3}", part) and int(part) <= _MOST_RANKS for part in parts):
        raise ConfigurationError(
            f"CELLS={cells} is no list of numbers of ranks; allowed: 1 to {_MOST_RANKS}, such as CELLS=1,2"
        )
    if len(set(parts)) < len(parts):
        raise ConfigurationError(f"CELLS={cells} names a number of ranks twice; give each once, the baseline first")
    return {f"{part}proc": int(part) for part in parts}


def _parse_number(name: str, value: str, *, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise ConfigurationError(f"{name}={value}; allowed: a whole number, at least {least}")
    return int(value)


def _find_python(interpreter: str) -> str:
    path = Path(interpreter).expanduser()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ConfigurationError(
            f"INTERPRETER={interpreter} cannot be run; give the python of the environment that the script runs in"
        )
    # Not resolved: an environment is known by where its link stands.
    return str(path.absolute())
