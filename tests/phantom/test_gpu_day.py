"""`make gpu-day` on a card that is not there, where only five packages are: its parts begin, end and leave figures."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.throughput.rows import small_qwen2, write_rows
from tests.bare_python import make_bare_python
from tests.conftest import PROJECT
from tests.phantom.build import Phantom
from tests.warm.environment import warm_environment
from tests.warm.imports import OF_FIVE_PACKAGES

pytestmark = pytest.mark.slow

_PARTS = ("bf16 packed", "training", "2 ranks, ddp")
_NUM_ROWS = 128


def _prepare(folder: Path) -> Path:
    """Write what benchmarks/throughput/prepare.py makes of real texts, of a tiny model and random tokens."""
    random = np.random.default_rng(0)
    write_rows(folder / "rows", [random.integers(0, 512, size=size) for size in random.integers(8, 64, size=_NUM_ROWS)])
    (folder / "config.json").write_text(
        json.dumps(small_qwen2(512, hidden_size=64, intermediate_size=128, num_attention_heads=4))
    )
    facts = {"texts": "random tokens", "num_rows": _NUM_ROWS, "seq_len": 48, "mean_tokens": 32.0}
    (folder / "facts.json").write_text(json.dumps(facts))
    return folder


def test_each_part_ends_well_and_the_summary_names_no_figure_that_nobody_measured(
    phantom: Phantom, on_phantom: Callable[..., Path], tmp_path: Path
) -> None:
    on_phantom("H100-80")
    bare, prepared = make_bare_python(tmp_path / "bare"), _prepare(tmp_path / "prepared")
    words = ["--prepared", str(prepared), "--out", str(tmp_path / "out"), "--short", "--only", *_PARTS]
    given = {**phantom.environment("H100-80"), "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1"}
    with warm_environment(given, modules=OF_FIVE_PACKAGES, real=bare) as programs:
        done = subprocess.run(
            [programs / "python", "-m", "benchmarks.gpu_day", *words],
            cwd=PROJECT, env={**os.environ, **given}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert {part["name"]: part["how"] for part in summary["parts"]} == dict.fromkeys(("model", *_PARTS), "finished")
    assert summary["card"]["card"] == "NVIDIA H100 80GB HBM3"
    for part in summary["parts"][1:]:
        assert part["found"]["allocated_gib"] > 0
        assert "tokens_per_second" not in part["found"]
    assert "neither times nor losses" in done.stdout
