"""The workloads on which predictions are scored, each as a params.yaml; data that is not built in comes by a folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from tasks.params import load_params
from tasks.ranks.cell_ranks import make_ranks_config
from training.config import SegmentConfig, TrainingConfig

_ROOT = Path(__file__).resolve().parents[2]
_STAGES = ("fingerprint", "download", "slice")


@dataclass(frozen=True, kw_only=True)
class WorkloadPlan:
    """A workload, and how much of it is trained."""

    params: str
    """params.yaml; `{data}` stands for the folder with data."""
    batch: int
    """Samples per step of the workload's own training."""
    rule: str
    """How the rate grows with the batch: sqrt, or linear."""
    samples: int
    """Of the baseline's training."""
    every: int
    """Samples between two looks at the held-out loss: a multiple of the largest batch."""
    heldout: int = 128
    """Held-out rows that are looked at, at most."""
    passes: Mapping[int, int] = field(default_factory=dict)
    """Batch factor -> passes over each range before the next, of a preset that has cells with such batches."""


def _write(name: str, model: str, dataset: str, ranges: str, heldout: str, workload: str, train: str) -> str:
    return f"""\
name: {name}
model: {{{model}}}
dataset: {{{dataset}}}
ranges: {ranges}
heldout: {heldout}
workload: {workload}
train: {{epochs: 1, max_grad_norm: 1.0, precision: fp32, seed: 1, threads_per_rank: 1, {train}}}
cells:
  1proc: {{strategy: single, world_size: 1}}
quality: {{noise_batches: 16}}
tracking: {{uri: null, experiment: ddp-compare}}
upload: {{repo_id: null}}
"""


_ADAMW = "schedule: linear, weight_decay: 0.01"
WORKLOADS = {
    "embedded": WorkloadPlan(
        params=_write(
            "embedded", 'source: "builtin:tiny-qwen2", name: tiny_qwen2', 'source: "builtin:docstrings"',
            "[0-500, 500-1300]", "1300-1500", "causal_lm",
            "global_batch_size: 16, micro_batch_size: 4, learning_rate: 2e-3, warmup_steps: 10, seq_len: 128, "
            f"{_ADAMW}",
        ),
        batch=16, rule="sqrt", samples=1_280, every=128, heldout=64,
    ),
    "abstracts": WorkloadPlan(
        params=_write(
            "abstracts", 'source: "path:{data}/stories260k", name: stories260k',
            'source: "path:{data}/arxiv_abstracts.parquet", text_column: text', "[0-12000]", "25000-25200", "causal_lm",
            f"global_batch_size: 8, micro_batch_size: 2, learning_rate: 1.5e-3, {_ADAMW}, warmup_steps: 8, seq_len: 64",
        ),
        batch=8, rule="sqrt", samples=2_048, every=128,
    ),
    "abstracts-passes": WorkloadPlan(
        params=_write(
            "abstracts-passes", 'source: "path:{data}/stories260k", name: stories260k',
            'source: "path:{data}/arxiv_abstracts.parquet", text_column: text', "[0-384, 384-1024]", "1024-1224",
            "causal_lm",
            f"global_batch_size: 8, micro_batch_size: 2, learning_rate: 1.5e-3, {_ADAMW}, warmup_steps: 8, seq_len: 64",
        ),
        batch=8, rule="sqrt", samples=2_048, every=128, passes={1: 2, 2: 5, 4: 4},
    ),
    "reviews": WorkloadPlan(
        params=_write(
            "reviews", 'source: "builtin:tiny-modernbert", name: tiny_modernbert',
            'source: "path:{data}/reviews.jsonl", text_column: text, label: label', "[0-12000]", "12000-12700",
            "sequence_classification",
            f"global_batch_size: 16, micro_batch_size: 4, learning_rate: 5e-4, {_ADAMW}, warmup_steps: 8, seq_len: 64",
        ),
        batch=16, rule="sqrt", samples=4_096, every=256, heldout=384,
    ),
    "images": WorkloadPlan(
        params=_write(
            "images", 'source: "builtin:resnet18", name: resnet18',
            'source: "path:{data}/images_sign_digits.tar", image_size: 32', "[0-1000]", "1000-1300",
            "image_classification",
            "global_batch_size: 8, micro_batch_size: 2, optimizer: sgd, momentum: 0.9, learning_rate: 5e-3, "
            "schedule: linear, weight_decay: 5e-4, warmup_steps: 8",
        ),
        batch=8, rule="linear", samples=1_536, every=128,
    ),
}  # fmt: skip


def prepare(name: str, folder: Path, *, data: Path | None) -> None:
    """Have model and slices of a workload in `folder`, as the stages make them; nothing where they are there."""
    text = WORKLOADS[name].params.replace("{data}", str(data))
    folder.mkdir(parents=True, exist_ok=True)
    params = folder / "params.yaml"
    if params.exists() and params.read_text(encoding="utf-8") == text and (folder / "data/slices").exists():
        return
    params.write_text(text, encoding="utf-8")
    shutil.copy(_ROOT / "dvc.yaml", folder)
    stages = YAML(typ="safe", pure=True).load((_ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    for stage in _STAGES:
        command = stages[stage]["cmd"].split()
        subprocess.run([sys.executable, *command[1:]], cwd=folder, env=environment, check=True)


def make_config(folder: Path) -> TrainingConfig:
    """Return the workload's own training of one process: one pass over each range."""
    params = load_params(folder / "params.yaml", looks_at_data=False)
    segments = [
        SegmentConfig(range=str(part), epoch=1, slice_dir=folder / "data/slices" / str(part), fingerprint=str(part))
        for part in params.ranges
    ]
    return make_ranks_config(
        params.baseline, params, device="cpu", base_model=folder / "data/base_model", work=folder, segments=segments
    )


def locate_heldout(folder: Path) -> Path:
    """Return the slice of the held-out rows."""
    return folder / "data/slices" / load_params(folder / "params.yaml", looks_at_data=False).heldout_name
