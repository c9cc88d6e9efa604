"""The project's sources in another folder: what is forked from a warm environment looks for them where it runs."""

from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]


def link_sources(folder):
    """Have `python -m tasks.*` of a warm environment run in this folder; return it.

    Started anew, it would be told by PYTHONPATH, which is for an interpreter to look at when it starts.
    """
    for name in ("ddp_audit", "tasks", "training"):
        (folder / name).symlink_to(_PROJECT / name, target_is_directory=True)
    return folder
