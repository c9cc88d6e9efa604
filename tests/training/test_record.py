"""What a segment says of itself: which weights it began with, and where its wall-clock seconds went."""

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_config
from tests.training.conftest import events_in, facts_of
from training.checkpoint import CheckpointStore
from training.config import SegmentConfig
from training.failure import StoppedError
from training.record import Counters, SegmentRecord
from training.strategies import StepResult
from training.weights import parameter_checksum
from training.window import StepFacts
from training.workloads.causal_lm import load_model

Launch = Callable[..., list[dict[str, Any]]]


def test_a_segment_notes_the_weights_that_it_began_with_not_those_that_it_should_have(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = parameter_checksum(load_model(tiny_model))
    train_here(make_config(tmp_path / "work", tiny_model, slices[:1]))
    config = make_config(tmp_path / "work", tiny_model, slices)
    # The defect: a launch that goes on with the second range begins from the base model, and says nothing.
    with monkeypatch.context() as defect:
        defect.setattr(CheckpointStore, "load_finished", lambda *_: None)
        train_here(config)
    assert facts_of(config, 0)["start_checksum"] == base
    assert facts_of(config, 1)["start_checksum"] == base
    # A right launch does not reuse it.
    train_here(config)
    assert facts_of(config, 1)["start_checksum"] == facts_of(config, 0)["parameter_checksums"][0]


@pytest.mark.parametrize("stop_after_step", [None, 4])
def test_steps_log_points_and_checkpoints_make_up_the_span_of_all_launches(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, stop_after_step: int | None
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1], checkpoint_every_steps=2)
    if stop_after_step is not None:
        with pytest.raises(StoppedError):
            train_here(config, stop_after_step=stop_after_step)
    train_here(config)
    facts = facts_of(config)
    assert facts["num_resumes"] == (stop_after_step is not None)
    known = facts["train_seconds"] + facts["checkpoint_seconds"] + facts["log_seconds"]
    assert min(facts["train_seconds"], facts["checkpoint_seconds"], facts["log_seconds"]) > 0
    # No moment counted twice; half a second for what is between them on a busy machine.
    assert known <= facts["span_seconds"] <= known + 0.5
    folder = Path(config["work_dir"]) / "segments" / config["segments"][0]["fingerprint"]
    others = [line["other_seconds"] for line in events_in(folder / "steps.jsonl")]
    assert facts["other_seconds"] == pytest.approx(sum(others))
    assert min(others) >= 0


def _facts(step: int) -> StepFacts:
    return StepFacts(
        step=step, loss_sum=step / 3, num_tokens=512, num_targets=512, num_samples=16, num_padding_tokens=7,
        learning_rate=1e-3 / step, grad_norm=1 / step, seconds=step / 7, data_wait_seconds=1e-5 / step,
        other_seconds=1e-4 / step, rank_own_seconds=[step / 9, step / 11], rank_own_positions=[step, 2 * step],
    )  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
def test_lines_take_no_more_than_their_text_and_nothing_on_ranks_that_never_write_them(
    rank: int, tmp_path: Path
) -> None:
    segment = SegmentConfig(range="0-32000", epoch=1, fingerprint="f", slice_dir=tmp_path)
    record = SegmentRecord(
        segment=segment, first_step=1, num_steps=2_000, counters=Counters("", ""), keeps_lines=rank == 0
    )
    nothing, num_bytes = StepResult(torch.zeros(()), torch.zeros(()), 0, 0), 0
    first = [_facts(1)]
    # As a checkpoint of one step has left it.
    record.steps_text = bytearray(b"".join(json.dumps(line).encode() + b"\n" for line in record.add(first)))
    assert [line["step"] for line in record.lines] == [1]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for step in range(2, 2_001):
        record.consume(step, rank, [], nothing)
        num_bytes += sum(len(json.dumps(line)) + 1 for line in record.add([_facts(step)]))
    gc.collect()
    more = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    if rank:
        assert list(record.lines) == []
        assert more < 10_000
    else:
        assert [line["step"] for line in record.lines] == list(range(1, 2_001))
        # An eighth is room to grow.
        assert 0.99 * num_bytes < more < 1.2 * num_bytes
