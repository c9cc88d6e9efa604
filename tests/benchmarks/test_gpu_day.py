"""A day on a card: a part that takes too long is named, and what it found is kept."""

import json
import sys
import time

import numpy as np
import pytest

from benchmarks.gpu_day import two_ranks
from benchmarks.gpu_day.__main__ import run_part
from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.summary import RUNNING
from benchmarks.throughput.rows import small_qwen2, write_rows
from training.process.files import write_json

_FINDS_AND_HANGS = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], "found.json").write_text('{"first": 1}')
time.sleep(60)
"""


class _CpuDay(Day):
    """A day without a card."""

    def make_setup(self, **changes):
        """Return the setup on the CPU, in fp32."""
        return super().make_setup(**{"precision": "fp32", "threads": 1, **changes, "device": "cpu"})


def _make_day(folder, *, seconds):
    (out := folder / "out").mkdir()
    return _CpuDay(
        part="a-part", prepared=folder, scratch=folder, out=out, ends_at=time.monotonic() + seconds, is_short=True
    )


def prepare(folder):
    """Write a tiny model's shape and rows; return the folder."""
    random = np.random.default_rng(0)
    write_rows(folder / "rows", [random.integers(0, 512, size=size) for size in random.integers(8, 64, size=800)])
    shape = small_qwen2(512, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=2)
    write_json(folder / "config.json", shape)
    write_json(folder / "facts.json", {"texts": "random tokens", "num_rows": 800, "seq_len": 48})
    return folder


def test_what_a_part_found_before_its_time_was_over_is_kept_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_day.__main__._LEAST_SECONDS", 0.0)
    day, kept = _make_day(tmp_path, seconds=2.0), []
    ended = run_part(day, [sys.executable, "-c", _FINDS_AND_HANGS, str(day.out)], kept.append)
    assert (ended.how, ended.results) == ("ended after its 2 s", {"first": 1})
    assert [(one.how, one.results) for one in kept] == [(RUNNING, {"first": 1})]
    assert ended.seconds < 30


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_two_ranks_of_every_strategy_end_where_one_does_and_their_updates_are_one_processs(tmp_path):
    day = _make_day(prepare(tmp_path), seconds=900)
    two_ranks.run(day)
    found = json.loads((day.out / "found.json").read_bytes())
    assert set(found["ended"]) == {"1 rank", "2 ranks, ddp", "2 ranks, fsdp2", "2 ranks, zero1"}
    assert all(one["is_equal"] for one in found["compared"].values()), found["compared"]
    assert found["compared"]["1 rank"] == {"loss": 0.0, "weights": 0.0, "is_equal": True}
    assert [(one["verdict"], one["problem"]) for one in found["updates"]] == [("passed", None)] * 3
