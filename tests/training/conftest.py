"""Tiny real trainings: in this process, alone or under a real torchrun."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import PROJECT
from tests.tiny import make_slice, make_tiny_model, write_slice
from training.config import TrainingConfig, read_config
from training.data.plan import plan_segment
from training.loop import train
from training.process.distributed import Ranks, join_ranks
from training.process.events import EventStream
from training.process.files import write_json
from training.process.stop_request import StopRequest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2-architecture model of 2 layers, hidden 64, tied embeddings, 82 thousand parameters."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two slices of ragged rows, some of a single token, with sizes that no batch divides: 45 and 27 rows."""
    root = tmp_path_factory.mktemp("slices")
    return [make_slice(root / "0-45", num_rows=45), make_slice(root / "45-72", num_rows=27, first_row=45, seed=1)]


@pytest.fixture(scope="package")
def alone() -> Iterator[Ranks]:
    """This process as the only rank, until the tests of this folder are done: there can be one group in a process."""
    torch.set_num_threads(1)
    with join_ranks(config_for_one_rank()) as ranks:
        yield ranks


def config_for_one_rank() -> Any:
    """Return the little of a config that joining the process group looks at."""
    return type("Config", (), {"world_size": 1, "device": "cpu", "oversubscribe": False})()


class InterruptingEvents(EventStream):
    """The real event stream, which also raises a real signal right after a given step was said (0: the start)."""

    def __init__(self, path: Path, *, signal_after_step: int | None) -> None:
        super().__init__(path, rank=0)
        self._signal_after_step = signal_after_step

    def send(self, event: str, **fields: Any) -> None:
        """Append the event, then raise SIGTERM if it is the step."""
        super().send(event, **fields)
        step = {"step": fields.get("step"), "segment_started": 0}.get(event)
        if step is not None and step == self._signal_after_step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def train_here(alone: Ranks, tmp_path: Path) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Return `train_here(config, stop_after_step=None)`: one launch in this process; returns its events."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def launch(config: dict[str, Any], *, stop_after_step: int | None = None) -> list[dict[str, Any]]:
        work_dir = Path(config["work_dir"])
        stream = work_dir / "steps.jsonl"
        events = InterruptingEvents(stream, signal_after_step=stop_after_step)
        train(parsed(config, tmp_path), alone, stop=StopRequest(), events=events)
        return events_in(stream)

    yield launch
    for number, handler in before.items():
        signal.signal(number, handler)


def parsed(config: dict[str, Any], folder: Path) -> TrainingConfig:
    """Return the config as a training process reads it."""
    path = folder / "config.json"
    write_json(path, config)
    return read_config(path)


def events_in(stream: Path) -> list[dict[str, Any]]:
    """Return the whole lines of an event stream or of a segment's steps.jsonl; [] where there is none yet."""
    if not stream.exists():
        return []
    text = stream.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def start_ranks(config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a real torchrun with the config's number of ranks; its output goes to work_dir/output.log."""
    work_dir = Path(config["work_dir"])
    work_dir.mkdir(parents=True, exist_ok=True)
    write_json(work_dir / "config.json", config)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={config['world_size']}", "-m", "training", "--config", str(work_dir / "config.json")]
    with (work_dir / "output.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=PROJECT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""},
        )


def weights_at_end(config: dict[str, Any], segment: int = -1) -> dict[str, torch.Tensor]:
    """Return the weights of a finished segment, the last by default."""
    part = config["segments"][segment]
    folder = Path(config["work_dir"]) / "segments" / part["fingerprint"]
    name = f"{config['model_name']}_{part['range']}-epoch-{part['epoch']}.pt"
    weights: dict[str, torch.Tensor] = torch.load(folder / name, weights_only=True)
    return weights


def facts_of(config: dict[str, Any], segment: int = -1) -> dict[str, Any]:
    """Return the segment.json of a finished segment."""
    folder = Path(config["work_dir"]) / "segments" / config["segments"][segment]["fingerprint"]
    facts: dict[str, Any] = json.loads((folder / "segment.json").read_bytes())
    return facts


def relative_l2(weights: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float:
    """Return |weights - reference| / |reference| over all tensors."""
    distance = sum(((weights[name].double() - tensor.double()) ** 2).sum() for name, tensor in reference.items())
    size = sum((tensor.double() ** 2).sum() for tensor in reference.values())
    return float((distance / size) ** 0.5)


def are_bitwise_equal(weights: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> bool:
    """Return True if both have the same names and the same bits."""
    return weights.keys() == reference.keys() and all(torch.equal(weights[name], reference[name]) for name in weights)


def poisoned_run(root: Path) -> tuple[Path, Path, int]:
    """Return a model whose token 100 is NaN, a slice with that token in one row, and the step that meets it."""
    model_dir = make_tiny_model(root / "poisoned", tied=False)
    weights = load_file(model_dir / "model.safetensors")
    weights["model.embed_tokens.weight"][100] = float("nan")
    save_file(weights, model_dir / "model.safetensors", metadata={"format": "pt"})
    rows = [[1 + index % 50] * 12 for index in range(40)]
    order = plan_segment(
        np.full(40, 12), seed=1, epoch=1, rows="0-40", global_batch_size=8, micro_batch_size=2
    ).order  # fmt: skip
    rows[order[20]][3] = 100
    return model_dir, write_slice(root / "poisoned_slice", rows), 3
