"""The Makefile in a folder whose name a shell takes for something else."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ODD = 'it\'s a [tëst] "$HOME" `ordner` *'

# Their values are ours and hold no sign that a shell knows.
_PLAIN = {"VENV", "READY", "MAKE", "@"}
_TOOL = """#!/bin/bash
printf '%s\\n' "$(basename "$0")" "$@" >> "$CALLS"
"""


def _recipes(makefile: str) -> list[str]:
    return [line for line in makefile.splitlines() if line.startswith("\t")]


def _unquoted(line: str) -> list[str]:
    """Return what make or the shell puts into the line where the shell splits it again."""
    found = [f"$({name})" for name in re.findall(r"(?<!\$)\$[({](\w+)[)}]", line) if name not in _PLAIN]
    outside = re.sub(r"'[^']*'|\"[^\"]*\"", "", line.replace("$$(", "("))
    return found + re.findall(r"\$\$\{?[A-Za-z]\w*", outside)


def test_no_recipe_holds_a_path_that_is_not_quoted(project: Path) -> None:
    lines = _recipes((project / "Makefile").read_text())
    assert len(lines) > 40
    wrong = {line: found for line in lines if (found := _unquoted(line))}
    # Numbers of exit codes and make's own.
    assert {line for line in wrong if "$$failed" not in line} == set(), wrong


@pytest.mark.parametrize("line", ["\tcd $(CURDIR)", '\tcd "$(CURDIR)"', "\trm $$PYTHON", "\tx ${PRESET}"])
def test_a_path_that_is_not_quoted_is_found(line: str) -> None:
    assert _unquoted(line)


@pytest.fixture
def odd(tmp_path: Path, project: Path) -> Path:
    """A folder with the Makefile, and tools in `.venv` that note what they are told."""
    folder = tmp_path / ODD
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(project / name, folder)
    for name in ("python", "uv", "dvc"):
        (bin_folder / name).write_text(_TOOL)
        (bin_folder / name).chmod(0o755)
    return folder


def _make(folder: Path, *arguments: str) -> list[str]:
    """Run make; return its tools' names and arguments."""
    calls = folder / "calls.txt"
    calls.unlink(missing_ok=True)
    environment = {**os.environ, "CALLS": str(calls)}
    done = subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return calls.read_text().splitlines()


@pytest.mark.parametrize("has_git", [False, True])
def test_set_up_runs_in_an_odd_folder_and_tells_dvc_where_there_is_no_git(odd: Path, has_git: bool) -> None:
    if has_git:
        (odd / ".git").mkdir()
    said = _make(odd, "setup")
    assert {"venv", "sync", "install", "--require-hashes"} < set(said)
    assert not any(part in word for word in said for part in ("tëst", "ordner"))  # every path is relative
    assert ("core.no_scm" in said) is not has_git
    assert (odd / ".venv" / ".ready").exists()
    assert _make(odd, "compare")[-2:] == ["-m", "flows"]


def test_a_preset_or_a_python_with_odd_signs_is_one_word(odd: Path) -> None:
    (odd / ".venv" / ".ready").touch()
    assert _make(odd, "use", f"PRESET={ODD}".replace("$", "$$"))[-1] == ODD
    other = odd / "a python"
    shutil.copy(odd / ".venv" / "bin" / "python", other)
    (odd / ".venv" / ".ready").unlink()
    assert _make(odd, "setup", f"PYTHON={other}".replace("$", "$$"))[0] == "a python"
