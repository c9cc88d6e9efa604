"""What `make serve` tells the other commands of its user: where its server is, and the credentials it asks for."""

import fcntl
from pathlib import Path

SERVED = Path(".prefect/server.env")
"""Readable by its user alone; there while `make serve` runs."""
LOGIN = Path(".prefect/login")
"""Readable by its user alone; stays from one `make serve` to the next, until somebody deletes it."""
LOCK = Path(".prefect/serve.lock")


def read_served_environment() -> dict[str, str]:
    """Return the environment in which Prefect talks to the server of `make serve`; empty if that does not run.

    A file that a killed one has left is not used: somebody else may listen there by now.
    """
    try:
        with LOCK.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_variables()
    except OSError:
        pass
    return {}


def _read_variables() -> dict[str, str]:
    try:
        lines = SERVED.read_text(encoding="utf-8").splitlines()
    except OSError:  # it is only just starting
        return {}
    return dict(line.split("=", 1) for line in lines)
