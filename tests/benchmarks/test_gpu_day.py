"""A day on a card: a part that fails or takes too long is named, and what nobody measured stays empty."""

import json
import sys
import time

import numpy as np
import pytest

from benchmarks.gpu_day import resuming, two_ranks
from benchmarks.gpu_day.__main__ import PARTS, run_part
from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.summary import RUNNING
from benchmarks.throughput.rows import small_qwen2, write_random_model, write_rows
from tests.processes import run_python
from training.process.files import write_json

_NOT_THERE = (
    "datasets", "dvc", "matplotlib", "mlflow", "pandas", "prefect", "psutil", "pyarrow", "pydantic", "rich", "ruamel",
    "sklearn", "torchvision",
)  # fmt: skip
"""What the five packages do without, of all that this project needs."""
_FINDS_AND_HANGS = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], "found.json").write_text('{"first": 1}')
time.sleep(60)
"""


def _make_day(folder, *, seconds=60.0):
    out = folder / "out"
    out.mkdir()
    return Day(
        part="a part", prepared=folder, scratch=folder, out=out, ends_at=time.monotonic() + seconds, is_short=True
    )


def _run(day, program):
    """Return how it ended, and what was kept on the way."""
    kept = []
    return run_part(day, [sys.executable, "-c", program, str(day.out)], kept.append), kept


def test_what_a_part_found_before_its_time_was_over_is_kept_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_day.__main__._LEAST_SECONDS", 0.0)
    ended, kept = _run(_make_day(tmp_path, seconds=3.0), _FINDS_AND_HANGS)
    assert (ended.how, ended.results) == ("ended after its 3 s", {"first": 1})
    assert [(one.how, one.results) for one in kept] == [(RUNNING, {"first": 1})]
    assert ended.seconds < 30


def test_every_part_can_be_imported_where_only_five_packages_are(project):
    modules = [f"gpu_day.{module}" for module in {module for module, _ in PARTS.values()} - {"gpu_tests"}]
    modules += [f"throughput.peers.{name}" for name in ("ours", "trainer", "accelerated", "published_fp32")]
    program = f"import sys; sys.modules.update(dict.fromkeys({_NOT_THERE}))\n"
    program += "".join(f"import benchmarks.{name}\n" for name in ("gpu_day.__main__", *modules))
    done = run_python("-c", program, folder=project)
    assert done.returncode == 0, done.stderr


class _CpuDay(Day):
    """A day without a card."""

    def make_setup(self, **changes):
        """Return the setup on the CPU, in fp32."""
        return super().make_setup(**{"precision": "fp32", "threads": 1, **changes, "device": "cpu"})


@pytest.fixture
def cpu_day(tmp_path):
    """A tiny model, and rows that are enough for every part."""
    random, shape = np.random.default_rng(0), small_qwen2(512, hidden_size=64, num_attention_heads=4)
    sizes = random.integers(8, 24, size=800)
    write_rows(tmp_path / "rows", [random.integers(0, 512, size=size) for size in sizes])
    write_random_model(tmp_path / "model", shape)
    write_json(tmp_path / "config.json", shape)
    write_json(tmp_path / "facts.json", {"num_rows": 800, "seq_len": 16})
    (tmp_path / "out").mkdir()
    return _CpuDay(
        part="a-part", prepared=tmp_path, scratch=tmp_path, out=tmp_path / "out", ends_at=time.monotonic() + 900,
        is_short=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_two_ranks_of_every_strategy_end_where_one_does_and_their_updates_are_one_processs(cpu_day):
    two_ranks.run(cpu_day)
    found = json.loads((cpu_day.out / "found.json").read_bytes())
    assert set(found["ended"]) == {"1 rank", "2 ranks, ddp", "2 ranks, fsdp2", "2 ranks, zero1"}
    assert all(one["is_equal"] for one in found["compared"].values()), found["compared"]
    assert found["compared"]["1 rank"] == {"loss": 0.0, "weights": 0.0, "is_equal": True}
    assert [(one["verdict"], one["problem"]) for one in found["updates"]] == [("passed", None)] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_a_training_that_is_stopped_goes_on_where_it_was(cpu_day):
    resuming.run(cpu_day)
    found = json.loads((cpu_day.out / "found.json").read_bytes())
    assert found["first"]["exit_code"] == 75
    assert 1 < found["second"]["first_step"] == found["first"]["last_step"] + 1 <= found["second"]["last_step"] == 12
    assert found["segment"]["num_steps"] == 12
    assert found["saved_bytes"] > 3 * 4 * 64 * 512
