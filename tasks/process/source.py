"""Which commit of its repository a folder holds, as git tells."""

import subprocess
from pathlib import Path

from training.process.redaction import redact


def read_commit(folder: Path = Path()) -> str | None:
    """Return the commit, with ` and changes` behind it where tracked files differ; None without git or repository."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit} and changes" if _ask_git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _ask_git(folder: Path, *words: str) -> str | None:
    try:
        # Without locks: looking must not disturb a git command of somebody else.
        found = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=folder, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return redact(found.stdout.strip())
