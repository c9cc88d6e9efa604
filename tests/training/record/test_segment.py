"""What a segment says of itself: which weights it began with, and where its wall-clock seconds went."""

import json

import numpy as np
import torch

from training.config import SegmentConfig
from training.data.batches import open_slice
from training.record.segment import SegmentRecord
from training.record.segment_facts import Counters
from training.record.window import StepFacts
from training.step.strategy import StepResult


def _facts(step):
    return StepFacts(
        step=step, loss_sum=step / 3, num_tokens=512, num_targets=512, num_samples=16, num_padding_tokens=7,
        learning_rate=1e-3 / step, grad_norm=1 / step, seconds=step / 7, data_wait_seconds=1e-5 / step,
        other_seconds=1e-4 / step, rank_own_seconds=[step / 9, step / 11], rank_own_positions=[step, 2 * step],
    )  # fmt: skip


class _OneOfTwo:
    """Ranks, of which the second learned from the same rows as the first."""

    @staticmethod
    def gather_rows(rows):
        second = rows.copy()
        second[:, 0] = 1
        return [second, rows]

    @staticmethod
    def ask_first_rank(ask):
        return ask()


def _record(folder, *, is_first_rank=True):
    segment = SegmentConfig(range="0-32000", epoch=1, fingerprint="f", slice_dir=folder)
    return SegmentRecord(
        segment=segment, first_step=1, num_steps=20_000, counters=Counters("", ""), folder=folder,
        is_first_rank=is_first_rank,
    )  # fmt: skip


def test_ledger_and_lines_of_several_launches_are_saved_by_step_and_rank(tmp_path, slices):
    rows, folders = open_slice(slices[0]).collate([3, 1], seq_len=16), [tmp_path / name for name in ("first", "second")]
    nothing = StepResult(torch.zeros(()), torch.zeros(()))
    for index, folder in enumerate(folders):
        record, last = _record(tmp_path / "work"), 1_000 * index
        if index:
            record.load(folders[index - 1])
            assert [line["step"] for line in record.earlier_lines] == list(range(1, last + 1))
        for step in range(last + 1, last + 1_001):
            record.consume(step, 0, [rows], nothing)
            record.add([_facts(step)])
            record.file_away(_OneOfTwo)
        record.file_away(_OneOfTwo, everything=True)
        folder.mkdir()
        record.save(folder)
    # As a reader without us would: four numbers of 4 bytes per sample.
    rank, step, row_id, num_tokens = np.fromfile(folders[-1] / "ledger.int32", np.int32).reshape(-1, 4).T
    assert step.tolist() == [step for step in range(1, 2_001) for _ in range(4)]
    assert rank.tolist() == [0, 0, 1, 1] * 2_000
    assert row_id.tolist() == rows.row_ids.tolist() * 4_000
    assert num_tokens.tolist() == rows.sample_num_tokens.tolist() * 4_000
    other = _record(tmp_path / "other", is_first_rank=False)
    other.load(folders[-1])
    lines = [json.loads(line) for line in (folders[-1] / "steps.jsonl").read_text().splitlines()]
    for told in (other.earlier_lines, lines):
        assert [line["step"] for line in told] == list(range(1, 2_001))
    assert not (tmp_path / "other").exists()
    assert list((tmp_path / "work").iterdir()) == [], "its files have no name"
