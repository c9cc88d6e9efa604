"""What is run on the card, one after another: each part a process of its own, the most wanted first."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.throughput.groups import Setup
from tasks.ranks.one_machine import FileRendezvous
from training.process.files import write_json


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process."""

    name: str
    folder: Path
    """In the results: its log, and found.json if it finds something."""
    arguments: list[str]
    """What python is told."""
    limit_seconds: float
    """After which it is ended."""
    environment: dict[str, str] = field(default_factory=dict)
    """What it is told beside."""


_ONE_RANK: dict[str, dict[str, Any]] = {
    "bf16 packed": {},
    "bf16 padded": {"packing": False},
    "bf16 packed, micro-batches of 64": {"micro_batch_size": 64},
    "bf16 padded, compiled": {"packing": False, "compile": True},
    "bf16 packed, compiled": {"compile": True},
    "fp16 packed": {"precision": "fp16"},
    "fp16 padded": {"precision": "fp16", "packing": False},
    "fp32 packed": {"precision": "fp32"},
    "fp32 padded": {"precision": "fp32", "packing": False},
    "bf16 packed, loss in chunks of 512": {"loss_chunk_rows": 512},
    "bf16 packed, loss in chunks of 8192": {"loss_chunk_rows": 8192},
    "bf16 packed, exact": {"exact": True},
}
"""What differs from presets/qwen2-arxiv.yaml."""
_SEGMENTS = "bf16 packed, expandable segments"
_TWO_RANKS: dict[str, dict[str, Any]] = {
    "2 ranks, ddp": {},
    "2 ranks, gradients in bf16": {"options": {"gradient_hook": "bf16"}},
    "2 ranks, static graph": {"options": {"static_graph": True}},
    "2 ranks, shards": {"strategy": "fsdp2"},
}
"""On the one card, over gloo: NCCL refuses two ranks on one. Says whether they run, not how fast two cards are."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """What all parts have in common."""

    prepared: Path
    """Folder that benchmarks/throughput/prepare.py made."""
    results: Path
    """Where each part has a folder."""
    scratch: Path
    """Where everything else is, the model with random weights among it."""
    num_rows: int
    seq_len: int
    is_short: bool
    """Only whether everything runs."""


def list_parts(day: Day) -> list[Part]:
    """Return all parts in their order; those of pytest only where it is installed."""
    steps = {name: _make_steps(day, name, changes) for name, changes in _ONE_RANK.items()}
    steps[_SEGMENTS] = _make_steps(day, _SEGMENTS, {}, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    first = [steps.pop("bf16 packed"), steps.pop("bf16 padded")]
    tests = [_make_tests(day)] if importlib.util.find_spec("pytest") else []
    two = [_make_steps(day, name, {"world_size": 2, **changes}) for name, changes in _TWO_RANKS.items()]
    return [_make_model(day), *first, *tests, _make_training(day), _make_throughput(day), *steps.values(), *two]


def _make_part(
    day: Day, name: str, module: str, *words: Any, limit_seconds: float, **environment: str
) -> Part:  # fmt: skip
    return Part(
        name=name, folder=_make_folder(day.results, name), arguments=["-m", module, *map(str, words)],
        limit_seconds=limit_seconds, environment=environment,
    )  # fmt: skip


def _make_folder(root: Path, name: str) -> Path:
    folder = root / name.replace(", ", "_").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _make_model(day: Day) -> Part:
    out = _make_folder(day.results, "model")
    module = "benchmarks.gpu_day.model"
    return _make_part(day, "model", module, out, day.prepared, day.scratch / "model", limit_seconds=180)


def _write_config(day: Day, name: str, changes: Mapping[str, Any]) -> Path:
    """Write what ranks are told (training/config.py): the preset of the true model, changed."""
    given, folder = dict(changes), _make_folder(day.scratch, name)
    setup = Setup(
        name="1 GPU", model_dir=day.scratch / "model", slice_dir=day.prepared / "rows", num_rows=day.num_rows,
        world_size=given.pop("world_size", 1), global_batch_size=64, seq_len=day.seq_len, steps_per_block=0,
        device="cuda", precision=given.pop("precision", "bf16"), threads=4,
    )  # fmt: skip
    told = {**setup.training(folder / "work"), "micro_batch_size": 16, "packing": True}
    (folder / "work").mkdir()
    write_json(folder / "config.json", {**told, "oversubscribe": setup.world_size > 1, **given})
    return folder / "config.json"


def _make_steps(day: Day, name: str, changes: Mapping[str, Any], **environment: str) -> Part:
    config, out = _write_config(day, name, changes), _make_folder(day.results, name)
    words = ["--config", config, "--out", out, *(["--short"] if day.is_short else [])]
    limit, module = 240.0 if changes.get("compile") else 120.0, "benchmarks.gpu_day.steps"
    num_ranks = changes.get("world_size", 1)
    if num_ranks == 1:
        return _make_part(day, name, module, *words, limit_seconds=limit, **environment)
    meeting = FileRendezvous(config.parent / "rendezvous")
    meeting.make()
    words = [*meeting.arguments(), f"--nproc-per-node={num_ranks}", "-m", module, *words]
    return _make_part(day, name, "torch.distributed.run", *words, limit_seconds=limit, **meeting.environment())


def _make_training(day: Day) -> Part:
    """A training as a cell has it, to its checkpoint."""
    words = ["--config", _write_config(day, "training", {}), "--out", _make_folder(day.results, "training")]
    return _make_part(day, "training", "benchmarks.gpu_day.train", *words, limit_seconds=180)


def _make_tests(day: Day) -> Part:
    # Without the settings and fixtures of the other tests, which need more packages.
    settings = _make_folder(day.scratch, "tests") / "pytest.ini"
    settings.write_text("[pytest]\nmarkers =\n    gpu: needs one\n")
    words = ["tests/gpu", "--noconftest", "-c", settings, "--rootdir=.", "-q", "-p", "no:cacheprovider"]
    return _make_part(day, "tests", "pytest", *words, limit_seconds=240)


def _make_throughput(day: Day) -> Part:
    out = _make_folder(day.results, "throughput") / "throughput"
    words = ["--prepared", day.prepared, "--out", out]
    if day.is_short:
        words += ["--seconds", 1, "--min-rounds", 2, "--steps-per-block", 1, "--no-trying", "--no-certificate"]
    return _make_part(day, "throughput", "benchmarks.throughput.gpu", *words, limit_seconds=540)
