"""What an audit is asked for: which script, on how many ranks, how it is started, and whether its speed is compared."""

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, dropwhile
from pathlib import Path

from ddp_audit.process.redaction import HIDDEN, redact_words


class AuditError(ValueError):
    """A failure that one line explains."""

    exit_code = 2


class ConfigurationError(AuditError):
    """What is asked for cannot be audited."""


class ScriptError(AuditError):
    """The script failed or hung."""

    exit_code = 6


class StoppedError(AuditError):
    """The audit was asked to stop."""

    exit_code = 75


_OPTIONS = {
    "CELLS": "numbers of ranks, the baseline first, such as 1,2; '1 --batch 8; 2 --batch 4' gives them arguments",
    "SPEED": "compare how fast the cells are, launches in turns; else one short launch of each",
    "SCALING": "strong: the global batch stays; weak: a rank's does",
    "LAUNCHER": "what starts the script in place of torchrun, such as python",
    "FOLDER": "where it is started",
    "INTERPRETER": "the python of the script's environment",
    "LAUNCHES": "how often each cell is started",
    "STEPS": "a launch is ended after so many optimizer steps",
    "HANG_SECONDS": "ranks that do nothing for so long inside a step are ended",
}
NAMES = ("SCRIPT", *_OPTIONS)
"""Of the environment variables that an audit is asked for by; all but the first are options on the command line."""
_MOST_RANKS = 64
_SECONDS_OF_A_CHECK = 40.0
_USUAL_OF_A_CHECK = {"LAUNCHES": "1", "STEPS": "64", "HANG_SECONDS": "600"}
_PLACE = re.compile(r"\{(ranks|cell|launch|rank_share:(\d+))\}")
_STARTED_BY_DEFAULT = ("torchrun", "accelerate", "deepspeed")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is audited, and how."""

    words: tuple[str, ...]
    """The script and its arguments, or `-m` and a module; `{cell}` and its like in an argument stand for the cell's."""
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
    most_seconds: float | None = None
    """A launch that has made a few steps is ended so long after the first; None: it takes as long as it takes."""
    hang_seconds: float
    """Ranks that do nothing for so long inside a step hang."""
    launcher: tuple[str, ...] = ()
    """What the script is started by; torchrun where it is empty."""
    words_of_cells: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Cell -> further arguments."""
    compares_speed: bool = True
    """Whether it is asked how much faster a cell is; else only whether its training is right."""
    is_weak: bool = False
    """Whether the batch of a rank is what stays (weak scaling), and not that of all ranks."""

    @property
    def baseline(self) -> str:
        """Name of the first cell."""
        return next(iter(self.cells))

    @property
    def command_line(self) -> str:
        """The script and its arguments, as they are typed, without secrets; the script by its place in the folder."""
        words = redact_words([self.words[0].removeprefix(f"{self.folder}/"), *self.words[1:]])
        return " ".join(word if word.endswith(HIDDEN) else shlex.quote(word) for word in words)

    def words_for(self, cell: str, launch: int = 1) -> list[str]:
        """Return the script and its arguments for a launch of a cell."""
        words = [*self.words, *self.words_of_cells.get(cell, ())]
        return [words[0], *(self._fill(word, cell, launch) for word in words[1:])]

    def launcher_for(self, cell: str, launch: int) -> list[str]:
        """Return what the script is started by."""
        return [self._fill(word, cell, launch) for word in self.launcher]

    def _fill(self, word: str, cell: str, launch: int) -> str:
        known = {"ranks": str(self.cells[cell]), "cell": cell, "launch": str(launch)}
        return _PLACE.sub(lambda at: known.get(at[1]) or str(int(at[2]) // self.cells[cell]), word)


def read_words(words: list[str]) -> dict[str, str]:
    """Return what a command line asks for by the same names: options anywhere, all else is the script's own.

    Behind `--` nothing is an option.
    """
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="ddp-audit", allow_abbrev=False, description="Is a training script right on several ranks, unchanged?",
        usage="ddp-audit [-h] [options] script.py [its arguments] [options] [-- more of its arguments]",
    )  # fmt: skip
    for name, text in _OPTIONS.items():
        option = f"--{name.lower().replace('_', '-')}"
        if name == "SPEED":
            parser.add_argument(option, dest=name, help=text, action="store_const", const="1")
        else:
            parser.add_argument(option, dest=name, help=text)
    args, script = parser.parse_known_args(words[:end])
    asked = {"SCRIPT": shlex.join(script + words[end + 1 :]), **vars(args)}
    return {name: value for name, value in asked.items() if value}


def parse_request(asked: Mapping[str, str]) -> Request:
    """Return what is asked for by the variables NAMES. Raises ConfigurationError in one line."""
    given = {name: value for name, value in asked.items() if name in NAMES and value.strip()}
    if "SCRIPT" not in given:
        raise ConfigurationError(
            'SCRIPT is missing; allowed: a Python script and its arguments, such as "train.py --epochs 2"'
        )
    folder = Path(given.get("FOLDER", ".")).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigurationError(f"FOLDER={given['FOLDER']} is no folder; give the one that the script is started in")
    cells, words_of_cells = _parse_cells(given.get("CELLS", "1,2"))
    # Not resolved: an environment is known by where its link stands.
    python = str(Path(given.get("INTERPRETER", sys.executable)).expanduser().absolute())
    if not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise ConfigurationError(
            f"INTERPRETER={given.get('INTERPRETER')} cannot be run; give the python of the script's environment"
        )
    compares_speed = given.get("SPEED", "0") not in ("0", "no")
    scaling = given.get("SCALING", "strong")
    if scaling not in ("strong", "weak"):
        raise ConfigurationError(
            f"SCALING={scaling}; allowed: strong (the global batch stays) or weak (a rank's stays)"
        )
    usual = {"LAUNCHES": "3", "HANG_SECONDS": "600"} if compares_speed else _USUAL_OF_A_CHECK
    numbers = {
        name: _parse_number(name, value, least=2 if name == "STEPS" else 1)
        for name in ("LAUNCHES", "STEPS", "HANG_SECONDS") if (value := given.get(name, usual.get(name)))
    }  # fmt: skip
    request = Request(
        words=_parse_words(given["SCRIPT"], folder),
        folder=folder,
        cells=cells,
        words_of_cells=words_of_cells,
        python=python,
        launcher=_parse_launcher(given.get("LAUNCHER", ""), python),
        num_launches=numbers["LAUNCHES"],
        most_steps=numbers.get("STEPS"),
        most_seconds=None if compares_speed or "STEPS" in given else _SECONDS_OF_A_CHECK,
        hang_seconds=numbers["HANG_SECONDS"],
        compares_speed=compares_speed,
        is_weak=scaling == "weak",
    )
    every = " ".join(chain(request.words, request.launcher, *words_of_cells.values()))
    for whole in (int(at[2]) for at in _PLACE.finditer(every) if at[2]):
        if wrong := [ranks for ranks in cells.values() if whole % ranks or not whole]:
            raise ConfigurationError(
                f"{{rank_share:{whole}}} does not split over {wrong[0]} ranks; give a multiple of every cell's ranks"
            )
    return request


def _split(name: str, line: str, example: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(
            f"{name}={line!r} cannot be read ({error}); quote it as for a shell, such as {example}"
        ) from None


def _parse_words(script: str, folder: Path) -> tuple[str, ...]:
    words = _split("SCRIPT", script, "SCRIPT=\"train.py --name 'a b'\"")
    words = list(dropwhile(lambda word: Path(word).name.startswith("python"), words))
    if not words:
        raise ConfigurationError(
            "SCRIPT names no script; allowed: a Python file or -m and a module, then its arguments"
        )
    if words[0] in _STARTED_BY_DEFAULT or words[:2] == ["-m", "torch.distributed.run"]:
        raise ConfigurationError(
            f"SCRIPT begins with {words[0]}; give the script and its arguments alone: torchrun starts it, or what "
            'LAUNCHER names, such as LAUNCHER="accelerate launch --num_processes {ranks}"'
        )
    if words[0] == "-m" and len(words) > 1:
        return tuple(words)
    if not (folder / words[0]).is_file():
        raise ConfigurationError(
            f"SCRIPT: {words[0]} is no file of {folder}; give its path from there, or the folder as FOLDER=..."
        )
    return (str((folder / words[0]).absolute()), *words[1:])


def _parse_launcher(line: str, python: str) -> tuple[str, ...]:
    """Return the words of the launcher, the first one as the program of the script's environment."""
    words = _split("LAUNCHER", line, 'LAUNCHER="accelerate launch --num_processes {ranks}"')
    if not words:
        return ()
    if Path(words[0]).name.startswith("python"):
        return (python, *words[1:])
    program = shutil.which(words[0], path=os.pathsep.join([os.path.dirname(python), os.environ.get("PATH", "")]))
    if program is None:
        raise ConfigurationError(f"LAUNCHER={words[0]} is neither beside {python} nor in PATH; allowed: python, or it")
    return (program, *words[1:])


def _parse_cells(cells: str) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Return cell -> ranks, and cell -> its own arguments: `1,2` or `1 --batch 8; 2 --batch 4`."""
    parts = [
        _split("CELLS", part, 'CELLS="1 --batch 8; 2 --batch 4"') or [""]
        for part in cells.split(";" if ";" in cells or " -" in cells else ",")
    ]
    words = {number: tuple(own) for number, *own in parts}
    if not all(re.fullmatch(r"[1-9]\d{0,3}", number) and int(number) <= _MOST_RANKS for number in words):
        raise ConfigurationError(
            f"CELLS={cells} is no list of numbers of ranks; allowed: 1 to {_MOST_RANKS}, such as CELLS=1,2, or with "
            'arguments of their own CELLS="1 --batch 8; 2 --batch 4"'
        )
    if len(words) < len(parts):
        raise ConfigurationError(f"CELLS={cells} names a number of ranks twice; give each once, the baseline first")
    return (
        {f"{number}proc": int(number) for number in words},
        {f"{number}proc": own for number, own in words.items() if own},
    )


def _parse_number(name: str, value: str, *, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise ConfigurationError(f"{name}={value}; allowed: a whole number, at least {least}")
    return int(value)
