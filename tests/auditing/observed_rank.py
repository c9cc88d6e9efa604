"""A rank that runs a script under the observer, with the environment of torchrun: `main` is what ForkedRanks runs.

What the import hook does before is left out; tests/auditing/test_command.py has it from outside, under torchrun.
"""

import atexit
import json
import os
import runpy
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

from torch.distributed import FileStore
from torch.distributed.rendezvous import _rendezvous_handlers

from ddp_audit.observer import around
from ddp_audit.observer.arming import arm_when_torch_comes


def main():
    """Run the script as this rank; return its exit code."""
    told = json.loads(Path(sys.argv[2]).read_bytes())
    os.chdir(told["folder"])
    sys.argv = told["words"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    # A rank that ends need not take apart what it found: the operators of torch's libraries, one by one.
    for finalizer in [*weakref.finalize._registry]:
        finalizer.atexit = False
    rank = int(os.environ["RANK"])
    if told["is_alone"]:
        rank = None
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
    else:
        store = FileStore(f"{told['work_dir']}/meeting", told["world_size"])
        # At a port, a rank that comes before the first waits for half a second.
        _rendezvous_handlers["env"] = lambda *_, **__: iter([(store, rank, told["world_size"])])
    # Who looks at every name of all modules copies the memory of them all; those of Python itself are enough here.
    own = {name: sys.modules[name] for name in sys.modules.keys() & sys.stdlib_module_names}
    around.sys = SimpleNamespace(modules=own)
    arm_when_torch_comes(told["work_dir"], rank=rank, heartbeat=None)
    around.sys = sys
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        atexit._run_exitfuncs()
    return 0
