"""A Python of its own with packages of certain versions, from the registry that uv is set up for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_MOST_SECONDS = 600


def make_pinned_python(folder, packages, *, without=(), version="3.12"):
    """Make it in a folder; return the interpreter. Skips by name where the registry does not answer.

    `without`: what the packages bring and is not to be there. Of the version where there is one, else of ours.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    found = shutil.which(f"python{version}")
    for base in (*([found] if found else []), sys.executable):
        made = subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", base, folder], capture_output=True, check=False
        )
        if made.returncode == 0:
            break
    python = folder / "bin" / "python"
    try:
        done = subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", python, *packages],
            capture_output=True, text=True, check=False, timeout=_MOST_SECONDS,
        )  # fmt: skip
        words = done.stderr
    except subprocess.TimeoutExpired:
        done, words = None, f"no answer within {_MOST_SECONDS} s"
    if done is None or done.returncode:
        pytest.skip(f"no {', '.join(packages[:2])} to be had: {words.strip().rpartition(chr(10))[2]}")
    if without:
        subprocess.run(
            [uv, "pip", "uninstall", "--quiet", "--python", python, *without], check=True, capture_output=True
        )
    return python
