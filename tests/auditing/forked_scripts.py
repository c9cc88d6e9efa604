"""Scripts under the observer in a second each: ranks forked from a process that has imported torch already.

`python -m tests.auditing.forked_scripts` is that process: it takes one launch per line on its standard input and
answers with the exit codes of the ranks. A rank runs the script as `__main__` with the environment that
torchrun gives it; what the import hook does before is left out, and tests/auditing/test_command.py has it from
outside, under torchrun.
"""

import importlib.util
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
import weakref
from dataclasses import replace
from pathlib import Path

from ddp_audit.records import Launched, read_rank
from tests.warm.imports import import_ahead

# Not that of tests/conftest.py, which makes a folder for a worker's scratch: each rank would remove it at its end.
_PROJECT = Path(__file__).resolve().parents[2]


class ForkedScripts:
    """The process that forks; `close` ends it."""

    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=_PROJECT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def launch(self, words, *, cell, world_size, folder, is_alone=False):
        """Run the script to its end on so many ranks, in `folder`; return what it left."""
        work = folder / f"{cell}-{len(list(folder.glob(cell + '-*')))}"
        work.mkdir(parents=True)
        asked = {
            "words": words, "world_size": world_size, "work": str(work), "folder": str(folder), "is_alone": is_alone,
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return replace(read_launched(work, cell, codes), is_alone=is_alone)

    def close(self):
        """End it."""
        self._process.kill()
        self._process.wait()


def read_launched(work, cell, codes):
    """Return what ranks with these exit codes left in `work`."""
    ranks = [read_rank(work / f"rank-{rank}.jsonl", rank) for rank in range(len(codes))]
    words_of_ranks = [(work / f"{rank}.log").read_text()[-2000:] for rank in range(len(codes))]
    return Launched(cell, work, ranks, max(codes, key=abs), "\n".join(words_of_ranks) if any(codes) else "")


_HEAVY = [
    "torch.distributed", "accelerate", "transformers.trainer", "transformers.models.qwen2.modeling_qwen2",
    "ddp_audit.observer.around", "ddp_audit.observer.computed",
]  # fmt: skip


def _serve():
    import_ahead([*_HEAVY, *["pytorch_lightning"] * bool(importlib.util.find_spec("pytorch_lightning"))])
    # A rank that ends need not take apart what it found: the operators of torch's libraries, one by one.
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    answers = os.dup(1)
    for line in sys.stdin:
        asked = json.loads(line)
        os.write(answers, (json.dumps(fork_ranks(asked)) + "\n").encode())


def fork_ranks(asked):
    """Run `words` on `world_size` ranks in `folder`, their records and output in `work`; return their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = [_fork(asked, rank, port) for rank in range(asked["world_size"])]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _fork(asked, rank, port):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(Path(asked["work"]) / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = _run(asked, rank, port)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run(asked, rank, port):
    """Run the script as this rank; return its exit code."""
    import atexit

    from ddp_audit.observer.arming import arm_when_torch_comes

    os.chdir(asked["folder"])
    is_alone = asked.get("is_alone")
    if not is_alone:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(asked["world_size"]), "LOCAL_WORLD_SIZE":
            str(asked["world_size"]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
    sys.argv = asked["words"]
    sys.path.insert(0, str(Path(asked["words"][0]).parent))
    arm_when_torch_comes(asked["work"], rank=None if is_alone else rank, heartbeat=None)
    try:
        runpy.run_path(asked["words"][0], run_name="__main__")
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()


if __name__ == "__main__":
    _serve()
