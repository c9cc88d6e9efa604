"""What a segment says of itself: which weights it began with, and where its wall-clock seconds went."""

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.conftest import Launch, Toy, events_in, facts_of, steps_of
from training.config import SegmentConfig
from training.data.batches import MicroBatch, open_slice
from training.model.weights import compute_parameter_checksum
from training.process.failure import StoppedError
from training.record.segment import SegmentRecord
from training.record.segment_facts import Counters
from training.record.window import StepFacts
from training.state.checkpoint import CheckpointStore
from training.step.strategy import StepResult
from training.workloads.causal_lm import load_model


def test_a_segment_notes_the_weights_that_it_began_with_not_those_that_it_should_have(
    toy: Toy, train_here: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = compute_parameter_checksum(load_model(toy.models("tiny")))
    train_here(toy.tell())
    config = toy.tell(num_slices=2)
    # The defect: a launch that goes on with the second range begins from the base model, and says nothing.
    with monkeypatch.context() as defect:
        defect.setattr(CheckpointStore, "load_finished", lambda *_: None)
        train_here(config)
    assert [facts_of(config, index)["start_checksum"] for index in range(2)] == [base, base]
    # A right launch does not reuse it.
    train_here(config)
    assert facts_of(config, 1)["start_checksum"] == facts_of(config, 0)["parameter_checksums"][0]


def test_steps_log_points_and_checkpoints_make_up_the_span_of_all_launches(toy: Toy, train_here: Launch) -> None:
    config = toy.tell(checkpoint_every_steps=2)
    with pytest.raises(StoppedError):
        train_here(config, stop_after_step=4)
    train_here(config)
    facts = facts_of(config)
    parts = [facts[f"{part}_seconds"] for part in ("train", "checkpoint", "log")]
    assert min(parts) > 0
    # No moment counted twice; half a second for what is between them on a busy machine.
    assert sum(parts) <= facts["span_seconds"] <= sum(parts) + 0.5
    others = [line["other_seconds"] for line in steps_of(config)]
    assert facts["other_seconds"] == pytest.approx(sum(others))
    assert min(others) >= 0


def _facts(step: int) -> StepFacts:
    return StepFacts(
        step=step, loss_sum=step / 3, num_tokens=512, num_targets=512, num_samples=16, num_padding_tokens=7,
        learning_rate=1e-3 / step, grad_norm=1 / step, seconds=step / 7, data_wait_seconds=1e-5 / step,
        other_seconds=1e-4 / step, rank_own_seconds=[step / 9, step / 11], rank_own_positions=[step, 2 * step],
    )  # fmt: skip


class _OneOfTwo:
    """Ranks, of which the second learned from the same rows as the first."""

    def __init__(self, *, is_first: bool = True) -> None:
        self._is_first = is_first

    @staticmethod
    def gather_rows(rows: np.ndarray) -> list[np.ndarray]:
        second = rows.copy()
        second[:, 0] = 1
        return [second, rows]

    def ask_first_rank(self, ask: Callable[[], Any]) -> Any:
        return ask() if self._is_first else None


def _record(folder: Path, *, is_first_rank: bool = True) -> SegmentRecord:
    segment = SegmentConfig(range="0-32000", epoch=1, fingerprint="f", slice_dir=folder)
    return SegmentRecord(
        segment=segment, first_step=1, num_steps=20_000, counters=Counters("", ""), folder=folder,
        is_first_rank=is_first_rank,
    )  # fmt: skip


def _enter(record: SegmentRecord, steps: range, rows: list[MicroBatch], ranks: Any) -> None:
    nothing = StepResult(torch.zeros(()), torch.zeros(()))
    for step in steps:
        record.consume(step, 0, rows, nothing)
        record.add([_facts(step)])
        record.file_away(ranks)


def _rows(slices: list[Path]) -> list[MicroBatch]:
    return [open_slice(slices[0]).collate([3, 1], seq_len=16)]


@pytest.mark.parametrize("is_first_rank", [True, False])
def test_memory_does_not_grow_with_the_steps(is_first_rank: bool, tmp_path: Path, slices: list[Path]) -> None:
    record, rows = _record(tmp_path / "work", is_first_rank=is_first_rank), _rows(slices)
    ranks = _OneOfTwo(is_first=is_first_rank)
    _enter(record, range(1, 3_001), rows, ranks)
    gc.collect()
    tracemalloc.start()
    _enter(record, range(3_001, 9_001), rows, ranks)
    gc.collect()
    more, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What 512 steps wait in: 500 bytes of text each, twice while they are written.
    assert most < 1_000_000
    assert more < 400_000
    assert (tmp_path / "work").exists() == is_first_rank
    if is_first_rank:
        record.file_away(ranks, everything=True)
        record.save(tmp_path)
        assert [line["step"] for line in events_in(tmp_path / "steps.jsonl")] == list(range(1, 9_001))


def test_ledger_and_lines_of_several_launches_are_saved_by_step_and_rank(tmp_path: Path, slices: list[Path]) -> None:
    rows, folders = _rows(slices), [tmp_path / name for name in ("first", "second")]
    last = 0
    for index, folder in enumerate(folders):
        record = _record(tmp_path / "work")
        if index:
            record.load(folders[index - 1])
            assert [line["step"] for line in record.earlier_lines] == list(range(1, last + 1))
        _enter(record, range(last + 1, last + 1_001), rows, _OneOfTwo())
        last += 1_000
        record.file_away(_OneOfTwo(), everything=True)
        folder.mkdir()
        record.save(folder)
    # As a reader without us would: four numbers of 4 bytes per sample.
    rank, step, row_id, num_tokens = np.fromfile(folders[-1] / "ledger.int32", np.int32).reshape(-1, 4).T
    assert step.tolist() == [step for step in range(1, 2_001) for _ in range(4)]
    assert rank.tolist() == [0, 0, 1, 1] * 2_000
    assert row_id.tolist() == rows[0].row_ids.tolist() * 4_000
    assert num_tokens.tolist() == rows[0].sample_num_tokens.tolist() * 4_000
    other = _record(tmp_path / "other", is_first_rank=False)
    other.load(folders[-1])
    assert [line["step"] for line in other.earlier_lines] == list(range(1, 2_001))
    assert not (tmp_path / "other").exists()
    lines = (folders[-1] / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 2_001))
    assert list((tmp_path / "work").iterdir()) == [], "its files have no name"
