"""Which record of a training a rehearsal is held against."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth.finished import seal_segment
from tasks.params import Params
from tasks.rehearsal.cards import CARDS
from tasks.rehearsal.cell import find_recorded_gib
from tasks.rehearsal.inputs import Inputs
from tests.tracked_run import PARAMS, write_run
from training.config import TrainingConfig

_CARD = CARDS["A100-80"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingConfig:
    """The config of a cell that has trained two segments on an A100, of 3 and 5 GiB."""
    params = Params.model_validate(PARAMS)
    cell = next(iter(params.cells))
    told = Inputs(model_dir=tmp_path, slices={"0-80": tmp_path}).make_config(params, cell)
    write_run(tmp_path / "data" / "runs" / cell, params)
    monkeypatch.chdir(tmp_path)
    _record(tmp_path, told, device=_CARD.name)
    return told


def _record(folder: Path, config: TrainingConfig, **changes: Any) -> None:
    """Have the records say what the ranks ran with."""
    names = ("micro_batch_size", "precision", "packing", "seq_len", "activation_checkpointing", "loss_chunk_rows")
    setting = {
        "train": {name: getattr(config, name) for name in names}, "workload": config.workload,
        "model_name": config.model_name, "options": dict(config.options), **changes,
    }  # fmt: skip
    files = sorted((folder / "data" / "runs" / config.cell).rglob("segment.json"))
    for file, peak in zip(files, (3.0, 5.0), strict=True):
        facts = json.loads(file.read_bytes())
        file.write_text(json.dumps({**facts, "settings": [setting], "peak_memory_gib": peak}))
        seal_segment(file.parent)


def test_the_most_of_all_segments_is_what_a_rehearsal_is_held_against(config: TrainingConfig) -> None:
    assert find_recorded_gib(config, _CARD) == 5.0


@pytest.mark.parametrize("change", [{"micro_batch_size": 2}, {"strategy": "fsdp2"}, {"cell": "other"}], ids=str)
def test_the_record_of_another_training_is_not(config: TrainingConfig, change: dict[str, Any]) -> None:
    assert find_recorded_gib(replace(config, **change), _CARD) is None
