"""What a segment says of itself: which weights it began with, and where its wall-clock seconds went."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config
from tests.training.conftest import events_in, facts_of
from training.checkpoint import CheckpointStore
from training.failure import StoppedError
from training.weights import parameter_checksum
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
