"""A day on a card that is not there, under the versions of a lent machine: its parts end well."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day.__main__ import PARTS
from tests.benchmarks.test_gpu_day import prepare
from tests.conftest import PROJECT
from tests.phantom.build import make_environment

pytestmark = pytest.mark.slow

_LENT = (
    "torch==2.11.0", "transformers==5.17.*", "numpy", "scipy", "safetensors", "accelerate", "psutil", "pytest",
    # Headers that torch 2.11 does not bring, for the phantom alone.
    "nvidia-cuda-cccl==13.0.*",
)  # fmt: skip
_NOT_LENT = ("pydantic", "pydantic-core")
_BUILD = "import sys; from pathlib import Path; from tests.phantom.build import build; build(Path(sys.argv[1]))"
_SHOWN_BY_A_CARD_ALONE = {"tests": "AssertionError", "two-ranks": "the ranks hold different"}
"""The phantom computes nothing, so that whoever looks at numbers may fail, with these words."""


def _make_lent_python(folder):
    """Return the interpreter of an environment as a lent machine has it; skips where the registry does not answer."""
    uv, python = str(Path(sys.executable).with_name("uv")), folder / "bin" / "python"
    for base in filter(None, (shutil.which("python3.12"), sys.executable)):
        if not subprocess.run([uv, "venv", "--quiet", "--clear", "--python", base, folder]).returncode:
            break
    command = [uv, "pip", "install", "--quiet", "--python", python, *_LENT]
    if subprocess.run(command).returncode:
        pytest.skip(f"no {_LENT[0]} to be had")
    subprocess.run([uv, "pip", "uninstall", "--quiet", "--python", python, *_NOT_LENT], check=True)
    return python


@pytest.mark.timeout(2400)
def test_every_part_of_a_day_ends_well_and_no_figure_is_named_that_nobody_measured(tmp_path):
    python = _make_lent_python(tmp_path / "python")
    subprocess.run([python, "-c", _BUILD, tmp_path / "phantom"], cwd=PROJECT, check=True)
    given = make_environment(tmp_path / "phantom" / "libphantom.so")
    (tmp_path / "tmp").mkdir()
    with (tmp_path / "log.txt").open("wb") as log:
        subprocess.run(
            [
                python, "-m", "benchmarks.gpu_day", "--prepared", prepare(tmp_path / "prepared"), "--short",
                "--minutes", "75", "--archive", tmp_path / "day.tgz",
            ],
            cwd=PROJECT, stdout=log, stderr=log,
            env={
                **os.environ, **given, "PHANTOM_SECONDS": "600", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1",
                "TMPDIR": str(tmp_path / "tmp"),
            },
        )  # fmt: skip
    shutil.unpack_archive(tmp_path / "day.tgz", tmp_path)
    log, day = (tmp_path / "log.txt").read_text(), tmp_path / "gpu-day"
    parts = {part["name"]: part for part in json.loads((day / "summary.json").read_bytes())}
    assert list(parts) == list(PARTS)
    wrong = {name: part["how"] for name, part in parts.items() if part["how"] != "finished"}
    assert wrong.keys() <= _SHOWN_BY_A_CARD_ALONE.keys(), (wrong, log)
    for name in wrong:
        assert _SHOWN_BY_A_CARD_ALONE[name] in (day / name / "log-end.txt").read_text()
    assert all((day / name / file).exists() for name in PARTS for file in ("found.json", "log-end.txt"))
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
    assert log.endswith((day / "summary.md").read_text())
    assert "neither times nor losses" in log
