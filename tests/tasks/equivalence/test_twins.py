"""Twins: the baseline's own training, made a few times by one process whose sums are rounded differently."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.equivalence.reference.update import OneProcess
from tasks.equivalence.twins import train_twins
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import TrainingConfig, read_config
from training.loop import train
from training.process.distributed import join_ranks
from training.process.events import EventStream
from training.process.files import write_json
from training.process.stop_request import StopRequest


def told(folder: Path, **changes: Any) -> TrainingConfig:
    """Return what the ranks of a cell are told: two segments, of 3 and of 2 steps."""
    if not (folder / "model").exists():
        make_tiny_model(folder / "model")
        make_slice(folder / "0-21", num_rows=21)
        make_slice(folder / "21-34", num_rows=13, first_row=21, seed=1)
    config = make_config(folder / "work", folder / "model", [folder / "0-21", folder / "21-34"], **changes)
    write_json(folder / "config.json", config)
    return read_config(folder / "config.json")


def test_the_first_twin_has_the_losses_of_the_real_baseline(tmp_path: Path) -> None:
    baseline = told(tmp_path)
    twins = train_twins(baseline, {}, max_seconds=60)
    one_rank: Any = type("Config", (), {"world_size": 1, "device": "cpu", "oversubscribe": False})()
    with join_ranks(one_rank) as ranks:
        train(baseline, ranks, stop=StopRequest(), events=EventStream(tmp_path / "work" / "steps.jsonl", rank=0))
    lines = [json.loads(line) for line in (tmp_path / "work" / "steps.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert len(losses) == 5
    assert twins.twins[0].losses == pytest.approx(losses, rel=1e-6)


def test_every_cell_that_adds_otherwise_has_a_twin_and_the_rest_is_random(tmp_path: Path) -> None:
    baseline = told(tmp_path)
    others = {
        "2proc": told(tmp_path, cell="2proc", strategy="ddp", world_size=2),
        "again": told(tmp_path, cell="again", strategy="ddp", world_size=2),
        "rounded": told(tmp_path, cell="rounded", strategy="ddp", world_size=2, options={"gradient_hook": "bf16"}),
    }
    twins = train_twins(baseline, others, max_seconds=600)
    names = [twin.order for twin in twins.twins]
    assert names == ["as 1proc adds", "as 2proc adds", "as rounded adds", "at random, 1", "at random, 2"]
    assert {len(twin.losses) for twin in twins.twins} == {5}
    apart = [max(abs(np.array(twin.losses) / np.array(twins.twins[0].losses) - 1)) for twin in twins.twins]
    assert apart[0] == 0
    assert all(0 < one < 1e-5 for one in (apart[1], apart[3], apart[4]))
    assert 1e-6 < apart[2] < 1e-2, "gradients that are exchanged in 16 bit make more of a difference"


def test_little_time_makes_fewer_steps_and_never_fewer_than_three_trainings(tmp_path: Path) -> None:
    baseline = told(tmp_path, global_batch_size=2, micro_batch_size=1)
    assert OneProcess(baseline).num_steps == 18
    seen = []
    twins = train_twins(baseline, {}, max_seconds=1e-6, on_step=lambda: seen.append(1))
    assert [len(twin.losses) for twin in twins.twins] == [5, 5, 5]
    assert len(seen) == 15
