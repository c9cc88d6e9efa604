"""Prefect's database of this folder: it holds nothing that a comparison needs, so that damage to it stops nothing."""

import contextlib
import sqlite3
import sys
from pathlib import Path


def set_damaged_aside(database: Path) -> None:
    """Give a database that SQLite cannot read another name, in one line, so that the server makes a new one."""
    if not database.exists() or _is_whole(database):
        return
    for part in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{database}{part}").replace(f"{database}.damaged{part}")
    sys.stderr.write(
        f"ddp-compare: {database} was damaged; it is {database}.damaged now, and Prefect begins a new one "
        "(earlier runs are no longer shown, no result is lost)\n"
    )


def _is_whole(database: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    except sqlite3.DatabaseError:
        return False
