"""Tiny real trainings: in this process, alone or under a real torchrun."""

import json
import signal
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from tests.conftest import PROJECT
from tests.gpu.steps import open_steps, read_told
from tests.ledgers import read_ledger
from tests.processes import run_python
from tests.tiny import make_config, make_rows
from training.loop import train
from training.process.distributed import join_ranks
from training.process.events import EventStream, StopRequest
from training.process.files import write_json


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return `models(kind)`: the folder of one of tests/training/models.py."""
    from tests.training.models import write

    return cache(lambda kind: write(kind, tmp_path_factory.mktemp("model") / "model"))


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Return `rows(workload)`: two slices of ragged rows, with sizes that no batch divides."""

    @cache
    def write(workload):
        return make_rows(workload, tmp_path_factory.mktemp("slices"), min_len=1 if workload == "causal_lm" else 2)

    return write


@pytest.fixture(scope="session")
def slices(rows):
    """Two slices of texts, some of a single token."""
    return rows("causal_lm")


def _tell(work, models, rows, *, model="tiny", slices=None, **changes):
    if slices is None:
        slices = rows(changes.get("workload", "causal_lm"))[: changes.pop("num_slices", 1)]
    size = changes.setdefault("world_size", 1)
    spread = {"cell": f"{size}proc", "strategy": "single" if size == 1 else "ddp"}
    folder = models(model) if isinstance(model, str) else model
    return make_config(work, folder, slices, **{**spread, **changes})


class Toy(NamedTuple):
    """What a test's trainings are told and made of: a small model, the first slice, and a folder of the test's own."""

    folder: Path
    models: Any
    rows: Any
    alone: Any

    def tell(self, work="work", **changes):
        """Return what a training in this folder is told; `model`, `slices` or `num_slices` may be others."""
        return _tell(self.folder / work, self.models, self.rows, **changes)

    def read(self, **changes):
        """Return the same as a training process reads it."""
        return read_told(self.tell(**changes), self.folder)

    def build(self, **changes):
        """Return its strategy on this process alone."""
        return open_steps(self.read(**changes), self.alone)[0]


@pytest.fixture
def toy(tmp_path, models, rows, alone):
    """See there."""
    return Toy(tmp_path, models, rows, alone)


@pytest.fixture(scope="session")
def trained(ranks, models, rows, tmp_path_factory):
    """Return `trained(**changes)`: the config of a finished training, one for all that tell the same."""

    @cache
    def train(told):
        work = tmp_path_factory.mktemp("trained") / "work"
        return ranks.train({**json.loads(told), "work_dir": str(work)})

    return lambda **changes: train(json.dumps(_tell(Path(), models, rows, **changes)))


@pytest.fixture(scope="package")
def alone():
    """This process as the only rank, until the tests of this folder are done: there can be one group in a process."""
    torch.set_num_threads(1)
    told = SimpleNamespace(world_size=1, device="cpu", oversubscribe=False)
    with join_ranks(told) as ranks:
        yield ranks


@pytest.fixture
def signals_as_before():
    """Have what a training in this process does to signals undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def train_here(alone, tmp_path, signals_as_before):
    """Return `train_here(config, stop_after_step=-1)`: one launch in this process; returns its events.

    It raises a real signal right after the step was said (0: the start).
    """

    def launch(config, *, stop_after_step=-1):
        stream = Path(config["work_dir"]) / "steps.jsonl"
        events = EventStream(stream, rank=0)
        send = events.send

        def send_and_interrupt(event, **fields):
            is_sent = send(event, **fields)
            if {"step": fields.get("step"), "segment_started": 0}.get(event) == stop_after_step:
                signal.raise_signal(signal.SIGTERM)
            return is_sent

        events.send = send_and_interrupt
        train(read_told(config, tmp_path), alone, stop=StopRequest(), events=events)
        return events_in(stream)

    return launch


def events_in(stream):
    """Return the whole lines of an event stream or of a segment's steps.jsonl; [] where there is none yet."""
    if not stream.exists():
        return []
    text = stream.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def train_under_torchrun(config):
    """Train under a real torchrun to the end; return what was said. AssertionError with its end where it fails."""
    told = Path(config["work_dir"]) / "config.json"
    told.parent.mkdir(parents=True, exist_ok=True)
    write_json(told, config)
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config['world_size']}")
    done = run_python(
        *torchrun, "-m", "training", "--config", told, folder=PROJECT, timeout=300, OMP_NUM_THREADS="1",
        PYTHONDONTWRITEBYTECODE="",
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    return said


def weights_at_end(config, segment=-1):
    """Return the weights of a finished segment, the last by default."""
    (file,) = folder_of(config, segment).glob(f"{config['model_name']}_*.pt")
    return torch.load(file, weights_only=True)


def facts_of(config, segment=-1):
    """Return the segment.json of a finished segment."""
    return json.loads((folder_of(config, segment) / "segment.json").read_bytes())


def folder_of(config, segment=-1):
    """Return the folder of a finished segment, the last by default."""
    return Path(config["work_dir"]) / "segments" / config["segments"][segment]["fingerprint"]


def state_at_end(config):
    """Return what the last segment keeps beside its weights."""
    return torch.load(folder_of(config) / "state.pt", weights_only=True)


def steps_of(config):
    """Return the lines of all steps of finished segments."""
    return [
        line for index in range(len(config["segments"])) for line in events_in(folder_of(config, index) / "steps.jsonl")
    ]


def learned_rows(config, segment):
    """Return step and row of everything that a segment learned from, in order."""
    ledger = read_ledger(folder_of(config, segment))
    return sorted(zip(ledger["step"].tolist(), ledger["row_id"].tolist(), strict=True))


def require_same_run(config, clean, *keys):
    """Hold a disturbed run against the undisturbed one: these values of each step, bits and rows."""
    ours, theirs = ([[line[key] for key in keys] for line in steps_of(each)] for each in (config, clean))
    assert ours == theirs
    for index in range(len(config["segments"])):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        assert learned_rows(config, index) == learned_rows(clean, index)


def take_gradient(workload, model, parts):
    """Return the sum of the losses of micro-batches, and the gradient of each parameter that has one."""
    model.zero_grad()
    loss = torch.stack([workload.loss_sum(model, part) for part in parts]).sum()
    loss.backward()
    return float(loss.detach()), {name: part.grad for name, part in model.named_parameters() if part.grad is not None}


def relative_l2(weights, reference):
    """Return |weights - reference| / |reference| over all tensors."""
    distance = sum(((weights[name].double() - tensor.double()) ** 2).sum() for name, tensor in reference.items())
    size = sum((tensor.double() ** 2).sum() for tensor in reference.values())
    return float((distance / size) ** 0.5)


def are_bitwise_equal(weights, reference):
    """Return True if both have the same names and the same bits."""
    return weights.keys() == reference.keys() and all(torch.equal(weights[name], reference[name]) for name in weights)
