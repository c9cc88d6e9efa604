"""What runs in this process beside the training: who looks at every line, and what Python ran at its start."""

import hashlib
import sys
from pathlib import Path
from typing import Any

_RUN_AT_START = ("sitecustomize", "usercustomize")
"""Modules that Python imports by itself, from wherever PYTHONPATH or the installation has them."""


def collect_interpreter() -> dict[str, Any]:
    """Return `watched_by`, the names of debuggers and profilers.

    To be called from the main thread, which trains: a profiler of another one slows that one.
    """
    found = [name for name, is_on in (("trace", sys.gettrace()), ("profile", sys.getprofile())) if is_on]
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return {"watched_by": (found + [str(tool) for tool in tools if tool])}


def collect_run_at_start() -> dict[str, str | None]:
    """Return the sha256 of each module that ran at the start, None for one that is not there."""
    return {name: _digest_module(name) for name in _RUN_AT_START}


def _digest_module(name: str) -> str | None:
    """Return the sha256 of the module's file; None where there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return "a file that cannot be read"
