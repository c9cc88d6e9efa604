"""The processes of the peers: started once per setup, idle between their blocks."""

import contextlib
import dataclasses
import threading
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.throughput.job import JOB_FILE, TRAINING_FILE, read_job
from tasks.measuring.workers import Workers
from training.config import LOSS_CHUNK_ROWS
from training.process.files import write_json
from training.workloads import find_workload


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One configuration in which all peers are compared."""

    name: str
    """Unique within a run."""
    model_dir: Path
    """Folder of the model."""
    slice_dir: Path
    """Folder of the rows."""
    num_rows: int
    """Rows there."""
    world_size: int
    """Processes."""
    global_batch_size: int
    """Samples per optimizer step."""
    seq_len: int
    """Tokens per row at most; of images without meaning."""
    steps_per_block: int
    """Timed optimizer steps of a block."""
    workload: str = "causal_lm"
    """Name of a file in training/workloads/."""
    device: str = "cpu"
    """cpu or cuda."""
    precision: str = "fp32"
    """Of forward and backward."""
    threads: int = 1
    """CPU threads of a process."""

    @property
    def unit(self):
        """What throughput counts: token, image."""
        return find_workload(self.workload).UNIT

    def training(self, work):
        """Return what our ranks are told (training/config.py); the peers take model, rows and batch from it."""
        is_alone = self.world_size == 1
        segment = {"range": f"0-{self.num_rows}", "epoch": 1, "fingerprint": "benchmark"}
        segment |= {"schedule_begin": 0, "schedule_total": 0}
        return {
            "cell": self.name,
            "strategy": "single" if is_alone else "ddp",
            "options": {},
            "world_size": self.world_size,
            "workload": self.workload,
            "device": self.device,
            "oversubscribe": False,
            "model_dir": str(self.model_dir.resolve()),
            "model_name": "model",
            "work_dir": str(work),
            "segments": [{**segment, "slice_dir": str(self.slice_dir.resolve())}],
            "global_batch_size": self.global_batch_size,
            "micro_batch_size": 1,
            "optimizer": "adamw",
            "momentum": 0.9,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "learning_rate": 1e-4,
            "schedule": "constant",
            "schedule_floor": 0.0,
            "decay_steps": 0,
            "warmup_steps": 0,
            "weight_decay": 0.01,
            "max_grad_norm": 1.0,
            "precision": self.precision,
            "seq_len": self.seq_len,
            "augment": "none",
            "packing": False,
            "loss_chunk_rows": LOSS_CHUNK_ROWS[self.device],
            "activation_checkpointing": "none",
            "adapter": None,
            "compile": False,
            "seed": 1,
            "exact": False,
            "threads_per_rank": self.threads,
            "log_every_steps": 10,
            "checkpoint_every_steps": 0,
            "eval_every_steps": 0,
            "heldout_dir": "",
            "heldout_digest": "",
            "statistics_rows": 0,
        }


@dataclass
class Blocks:
    """What the blocks of one peer came to, in the order of time."""

    seconds: list[float] = field(default_factory=list)
    """Of the slowest rank."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of a label."""
    num_units: list[int] = field(default_factory=list)
    """Real tokens, no padding; or images."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Of all ranks together; nearly what they would take with the cores to themselves."""
    peak_memory_bytes: int = 0
    """All ranks together."""


def write_job(setup, peer, work):
    """Write what a peer's processes are told into its work folder; return the job."""
    write_json(work / TRAINING_FILE, setup.training(work))
    write_json(work / JOB_FILE, {"peer": peer, "steps_per_block": setup.steps_per_block})
    return read_job(work)


class Group:
    """The processes of one peer."""

    def __init__(self, setup, peer, work):
        self.job = write_job(setup, peer, work)
        text = dataclasses.replace(self.job.training, cell=f"{setup.name}, {peer}")
        self._workers = Workers(text, launcher="torchrun", stop=threading.Event(), module="benchmarks.throughput.rank")
        self._block = 0

    def ready(self):
        """Wait until its processes are there."""
        self._workers.wait_until_ready()

    def use(self, setting, *, first_block=0):
        """Build what the setting asks for; blocks go on from `first_block`."""
        payload = {"setting": dict(setting), "first_block": first_block}
        self._workers.ask("use", **payload, doing=f"building {dict(setting)}")
        self._block = first_block

    def run(self, blocks):
        """Run the next block and enter what it came to; return its seconds."""
        outcome = self._workers.ask("run", block=self._block, doing="running a block")
        seconds = max(result["seconds"] for result in outcome)
        blocks.seconds.append(seconds)
        blocks.cpu_seconds.append(sum(result["cpu_seconds"] for result in outcome))
        blocks.losses.append(sum(result["loss_sum"] for result in outcome) / self.job.num_targets(self._block))
        blocks.num_units.append(self.job.num_units(self._block))
        blocks.peak_memory_bytes = sum(result["peak_memory_bytes"] for result in outcome)
        self._block += 1
        return seconds

    def close(self):
        """End its processes."""
        self._workers.close()


@contextlib.contextmanager
def groups(setup, peers, work):
    """Yield the waiting processes of every peer, and end them afterwards."""
    with contextlib.ExitStack() as stack:
        results = {}
        for peer in peers:
            results[peer] = Group(setup, peer, work / peer)
            stack.callback(results[peer].close)
        for group in results.values():
            group.ready()
        yield results
