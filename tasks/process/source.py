"""Which commit of its repository this folder holds, as git tells."""

import subprocess

from training.process.redaction import redact


def read_commit() -> str | None:
    """Return the commit, with ` and changes` behind it where tracked files differ; None without git or repository."""
    commit = _ask_git("rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit} and changes" if _ask_git("status", "--porcelain", "--untracked-files=no") else commit


def _ask_git(*words: str) -> str | None:
    try:
        # Without locks: looking must not disturb a git command of somebody else.
        found = subprocess.run(
            ["git", "--no-optional-locks", *words],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return redact(found.stdout.strip())
