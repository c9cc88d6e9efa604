"""Real ranks in a tenth of a second: forked from a process that has imported torch and has never computed anything.

`python -m tests.training.forked_ranks` is that process: it takes one launch per line on its standard input and answers
with the exit codes of the ranks. A rank runs the same entry with the same environment as under torchrun, unless a test
names another one.
"""

import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from training.process.files import write_json

_SECONDS_FOR_THE_OTHERS = 10.0
"""After the failure of one rank; torchrun also ends the others then."""


class ForkedRanks:
    """The process that forks, of the interpreter `python`; `close` ends it and all its ranks."""

    def __init__(self, python=None):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", __name__],
            cwd=Path(__file__).resolve().parents[2], env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def launch(self, config, **options):
        """Run the config's number of ranks to their end; return their exit codes by rank. Options: see `start`."""
        self.start(config, **options)
        return self.wait()

    def start(self, config, *, fault="", entry="training.__main__", ends_others=False):
        """Start the config's number of ranks, with a planned fault.

        What a rank runs is the `main` of the module `entry`. With `ends_others`, the first rank that fails has the
        others end by SIGTERM, as under torchrun.
        """
        work_dir = Path(config["work_dir"])
        work_dir.mkdir(parents=True, exist_ok=True)
        write_json(work_dir / "config.json", config)
        self._process.stdin.write(json.dumps([str(work_dir), fault, entry, ends_others]) + "\n")
        self._process.stdin.flush()

    def wait(self):
        """Return the exit codes of the ranks that were started last, by rank, when all have ended."""
        return json.loads(self._process.stdout.readline())

    def train(self, config):
        """Train to the end; return the config. AssertionError with the ranks' last words if one fails."""
        assert self.launch(config) == [0] * config["world_size"], last_words(config)
        return config

    def close(self):
        """End it."""
        self._process.kill()
        self._process.communicate()


def last_words(config):
    """Return the end of what each rank of the last launch said."""
    logs = (Path(config["work_dir"]) / f"rank-{rank}.log" for rank in range(config["world_size"]))
    return "\n".join(log.read_text()[-2000:] for log in logs)


def _serve():
    # All that a rank imports, but nothing that starts a thread: no thread survives a fork.
    for name in (
        "torch.nn.parallel", "transformers.models.llama.modeling_llama", "transformers.models.qwen2.modeling_qwen2",
        "tests.warm.first_times", "training.loop", "training.strategies.ddp.step", "training.strategies.single.step",
        "training.workloads.causal_lm",
    ):  # fmt: skip
        importlib.import_module(name)
    for line in sys.stdin:
        work_dir, fault, entry, ends_others = json.loads(line)
        config = json.loads(Path(work_dir, "config.json").read_bytes())
        if config.get("adapter") and importlib.util.find_spec("peft"):
            # The same: it imports torch's compiler.
            importlib.import_module("peft")
        if config.get("workload") == "image_classification":
            importlib.import_module("training.workloads.image_classification")
        if config.get("strategy") == "deepspeed":
            # Some seconds that its ranks need not take once each; others do without. Its engine imports an optimizer
            # that nobody asked for, and with it torch's compiler.
            os.environ["DS_ACCELERATOR"] = config["device"]
            importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
        for name in config.get("ahead", ()):
            importlib.import_module(name)
        gc.freeze()  # or each rank that looks for garbage copies the memory of all this
        running = _start(Path(work_dir), config["world_size"], fault, entry)
        print(json.dumps(_exit_codes(running, ends_others=ends_others)), flush=True)


def _start(work_dir, world_size, fault, entry):
    """Fork the ranks; return them by process id."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    environment = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "FAULT": fault,
    }
    running = {}
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            _be_rank(entry, work_dir, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        running[pid] = rank
    return running


def _exit_codes(running, *, ends_others):
    """Wait for all ranks; when one fails the others have some time to notice."""
    codes = {}
    deadline = None
    while running:
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            if deadline is None:
                deadline = time.monotonic() + _SECONDS_FOR_THE_OTHERS
                if ends_others:
                    for pid in running:
                        os.kill(pid, signal.SIGTERM)
            if time.monotonic() > deadline:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return [codes[rank] for rank in sorted(codes)]


def _be_rank(entry, work_dir, environment):
    """Run the entry in this process, which is a fresh fork, and end it."""
    code = 1
    try:
        with (work_dir / f"rank-{environment['RANK']}.log").open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.update(environment)
        if environment["FAULT"]:
            from tests.faults import apply_planned_faults

            apply_planned_faults()
        sys.argv = ["training", "--config", str(work_dir / "config.json")]
        code = importlib.import_module(entry).main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
