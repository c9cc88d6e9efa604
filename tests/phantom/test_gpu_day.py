"""A day on a card that is not there, under the versions of a lent machine: its parts end, and a kill loses none."""

import json
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_day.__main__ import PARTS
from benchmarks.throughput.rows import small_qwen2, write_rows
from tests.conftest import PROJECT
from tests.phantom.build import Phantom
from tests.phantom.pinned_python import make_pinned_python
from training.process.files import write_json

pytestmark = pytest.mark.slow

_LENT = (
    "torch==2.11.0", "transformers==5.17.*", "numpy", "scipy", "safetensors", "accelerate", "psutil", "pytest",
    # Headers that torch 2.11 does not bring, for the phantom alone.
    "nvidia-cuda-cccl==13.0.*",
)  # fmt: skip
_NOT_LENT = ("pydantic", "pydantic-core")
_BUILD = "import sys; from pathlib import Path; from tests.phantom.build import build; build(Path(sys.argv[1]))"
_NUM_ROWS = 800
_SHOWN_BY_A_CARD_ALONE = {"tests": "AssertionError", "two-ranks": "the ranks hold different"}
"""The phantom computes nothing, so that whoever looks at numbers may fail, with these words."""


@dataclass(frozen=True, kw_only=True)
class Lent:
    """A machine with a card, as it is lent."""

    python: Path
    environment: dict[str, str]
    prepared: Path

    def start(self, folder, *words):
        """Start a day of short parts, whose archive and files stand in the folder."""
        (folder / "tmp").mkdir(parents=True)
        command = [self.python, "-m", "benchmarks.gpu_day", "--prepared", self.prepared, "--short", "--minutes", "75"]
        with (folder / "log.txt").open("wb") as log:
            return subprocess.Popen(
                [*command, "--archive", folder / "day.tgz", *words], cwd=PROJECT, stdout=log, stderr=log,
                env={**self.environment, "TMPDIR": str(folder / "tmp")},
            )  # fmt: skip


@pytest.fixture(scope="module")
def lent(tmp_path_factory):
    """torch 2.11 and transformers 5.17 with the phantom that is built for them, and a tiny model's rows."""
    folder = tmp_path_factory.mktemp("lent")
    python = make_pinned_python(folder / "python", _LENT, without=_NOT_LENT)
    subprocess.run([python, "-c", _BUILD, folder / "phantom"], cwd=PROJECT, check=True)
    given = Phantom(library=folder / "phantom" / "libphantom.so").environment()
    random_rows, prepared = np.random.default_rng(0), folder / "prepared"
    sizes = random_rows.integers(8, 64, size=_NUM_ROWS)
    write_rows(prepared / "rows", [random_rows.integers(0, 512, size=size) for size in sizes])
    shape = small_qwen2(512, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=2)
    write_json(prepared / "config.json", shape)
    write_json(prepared / "facts.json", {"texts": "random tokens", "num_rows": _NUM_ROWS, "seq_len": 48})
    environment = {**os.environ, **given, "PHANTOM_SECONDS": "600", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    return Lent(python=python, environment=environment, prepared=prepared)


def _read(archive):
    with tarfile.open(archive) as packed:
        for file in packed:
            content = packed.extractfile(file)
            yield file.name.removeprefix("gpu-day/"), content.read()


def _read_parts(files):
    return {part["name"]: part for part in json.loads(files["summary.json"])}


@pytest.mark.timeout(2400)
def test_every_part_of_a_day_ends_well_and_no_figure_is_named_that_nobody_measured(lent, tmp_path):
    lent.start(tmp_path).wait()
    log, files = (tmp_path / "log.txt").read_text(), dict(_read(tmp_path / "day.tgz"))
    parts = _read_parts(files)
    assert list(parts) == list(PARTS)
    wrong = {name: part["how"] for name, part in parts.items() if part["how"] != "finished"}
    assert wrong.keys() <= _SHOWN_BY_A_CARD_ALONE.keys(), (wrong, log)
    for name in wrong:
        assert _SHOWN_BY_A_CARD_ALONE[name] in files[f"{name}/log-end.txt"].decode()
    assert {f"{name}/{file}" for name in PARTS for file in ("found.json", "log-end.txt")} <= files.keys()
    settings = {name: one for part in parts.values() for name, one in part["results"].get("settings", {}).items()}
    assert len(settings) == 7
    assert all(one["allocated_gib"] > 0 and one["host_ms"] > 0 for one in settings.values())
    assert parts["tests"]["results"]["outcomes"]["passed"] > 0
    assert (
        parts["training"]["results"]["second"]["first_step"] == parts["training"]["results"]["first"]["last_step"] + 1
    )
    assert "1 rank" in parts["two-ranks"]["results"]["ended"]
    assert set(parts["peers"]["results"]["contests"]) == {"trainer", "accelerated", "published", "published_fp32"}
    # The summary stands last in the output, and is that of the archive.
    assert log.endswith(files["summary.md"].decode())
    assert "neither times nor losses" in log
