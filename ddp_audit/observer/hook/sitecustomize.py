"""Python loads this first in every rank of an audit: it arms the observer, then makes as if it had never been here.

The folder of this file stands first in PYTHONPATH. What the environment was is put back before the script begins, so
that processes which the script starts are not observed, and a `sitecustomize` of the user's own is loaded after all.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PACKAGE = "ddp_audit"


def _load_observer() -> None:
    """Arm the observer in a rank that an audit started; torchrun itself, which starts ranks, only passes it on.

    Where the script starts its ranks itself, any process may be one, and all pass it on.
    """
    folder, rank = os.environ.get("DDP_COMPARE_AUDIT"), os.environ.get("RANK")
    starts_ranks = rank is None and "DDP_COMPARE_ANY_PROCESS" in os.environ
    if folder is None or (rank is None and not starts_ranks):
        return
    heartbeat = os.environ.get("DDP_COMPARE_HEARTBEAT")
    if not starts_ranks or os.environ["DDP_COMPARE_ANY_PROCESS"] == "this":
        before = os.environ.get("DDP_COMPARE_PYTHONPATH", "")
        for name in [item for item in os.environ if item == "PYTHONPATH" or item.startswith("DDP_COMPARE_")]:
            del os.environ[name]
        if before:
            os.environ["PYTHONPATH"] = before
    # By its place: the folder above it holds packages whose names the script may use for its own.
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, _HERE.parents[1] / "__init__.py", submodule_search_locations=[str(_HERE.parents[1])]
    )
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    from ddp_audit.observer.arming import arm_when_torch_comes

    arm_when_torch_comes(folder, rank=None if rank is None else int(rank), heartbeat=heartbeat)


def _load_next() -> None:
    """Load the module of this name that stands behind this folder on the path, if there is one."""
    sys.path[:] = [entry for entry in sys.path if not (bool(entry) and Path(entry).resolve() == _HERE)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _load_observer()
except Exception as error:
    sys.stderr.write(f"ddp-compare: this rank is not observed: {error!r}\n")
_load_next()
