"""Segments in order, stops, resumes and divergence: launches in this process."""

import json
import logging
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.ledgers import read_ledger
from tests.tiny import batches_in_order, make_config, make_tiny_model
from tests.training.conftest import (
    are_bitwise_equal,
    events_in,
    facts_of,
    poisoned_run,
    weights_at_end,
)
from training.data.batches import open_slice
from training.process.failure import BadCheckpointError, DivergedError, StoppedError
from training.process.files import digest_json
from training.workloads.causal_lm import load_model, loss_sum

Launch = Callable[..., list[dict[str, Any]]]
_STEPS_PER_EPOCH = (6, 4)


@pytest.fixture
def clean(tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch) -> dict[str, Any]:
    """An undisturbed run: both slices, once."""
    config = make_config(tmp_path / "clean", tiny_model, slices)
    train_here(config)
    return config


def _kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events if event["event"] not in ("step", "launch_started", "launch_finished")]


def _partials(config: dict[str, Any], segment: int) -> list[Path]:
    return sorted((Path(config["work_dir"]) / "partial" / config["segments"][segment]["fingerprint"]).glob("*"))


def _segment_folder(config: dict[str, Any], segment: int) -> Path:
    return Path(config["work_dir"]) / "segments" / config["segments"][segment]["fingerprint"]


def _flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def _assert_equals(config: dict[str, Any], clean: dict[str, Any]) -> None:
    """Hold a disturbed run against the undisturbed one: bits, steps, ledger, totals."""
    for index in range(len(config["segments"])):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        ours, theirs = (events_in(_segment_folder(each, index) / "steps.jsonl") for each in (config, clean))
        assert [line["segment_step"] for line in ours] == list(range(1, _STEPS_PER_EPOCH[index] + 1))
        assert [(line["step"], line["loss"], line["num_tokens"]) for line in ours] == [
            (line["step"], line["loss"], line["num_tokens"]) for line in theirs
        ]
        one, other = (read_ledger(_segment_folder(each, index)) for each in (config, clean))
        assert all(np.array_equal(one[name], other[name]) for name in ("step", "row_id", "num_tokens"))
        same = ("num_steps", "num_samples", "num_tokens", "loss", "first_step", "last_step", "start_checksum")
        assert {key: facts_of(config, index)[key] for key in same} == {key: facts_of(clean, index)[key] for key in same}


def test_a_run_streams_what_it_does_and_its_totals_are_the_sums_of_its_steps(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices, log_every_steps=4)
    events = train_here(config)
    assert _kinds(events) == ["segment_started", "segment_finished"] * 2
    steps = [event for event in events if event["event"] == "step"]
    assert [step["step"] for step in steps] == list(range(1, 11))
    assert events[0]["num_steps"] == 10
    for index in range(2):
        facts = facts_of(config, index)
        lines = events_in(_segment_folder(config, index) / "steps.jsonl")
        assert [line for line in steps if line["range"] == facts["range"]] == lines
        assert facts["num_tokens"] == sum(line["num_tokens"] for line in lines)
        assert facts["num_padding_tokens"] == sum(line["num_padding_tokens"] for line in lines)
        assert facts["train_seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
        assert facts["tokens_per_second"] == pytest.approx(facts["num_tokens"] / facts["train_seconds"])
        weighted = sum(line["loss"] * line["num_tokens"] for line in lines) / facts["num_tokens"]
        assert facts["loss"] == pytest.approx(weighted)
        ledger = read_ledger(_segment_folder(config, index))
        assert sorted(ledger["row_id"]) == open_slice(slices[index]).row_ids.tolist()
        assert ledger["num_tokens"].sum() == facts["num_tokens"]
    assert facts_of(config, 1)["start_checksum"] == facts_of(config, 0)["parameter_checksums"][0]
    assert facts_of(config, 1)["start_optimizer_checksum"] == facts_of(config, 0)["optimizer_checksums"][0]


def test_the_first_loss_is_the_base_models_on_the_same_rows(
    tiny_model: Path, slices: list[Path], clean: dict[str, Any]
) -> None:
    first = events_in(_segment_folder(clean, 0) / "steps.jsonl")[0]
    ledger = read_ledger(_segment_folder(clean, 0))
    rows = ledger["row_id"][ledger["step"] == 1]
    source, model = open_slice(slices[0]), load_model(tiny_model).eval()
    with torch.no_grad():
        total = sum(
            float(loss_sum(model, row))
            for row in batches_in_order(source, batch_size=1, seq_len=32)
            if row.row_ids[0] in rows
        )
    assert first["loss"] == pytest.approx(total / first["num_tokens"], rel=1e-6)


def test_one_more_epoch_or_range_reuses_the_finished_segments(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch
) -> None:
    train_here(make_config(tmp_path / "work", tiny_model, slices[:1]))
    longer = make_config(tmp_path / "work", tiny_model, slices[:1], epochs=2)
    events = train_here(longer)
    assert _kinds(events) == ["segment_reused", "segment_started", "segment_finished"]
    whole = make_config(tmp_path / "whole", tiny_model, slices[:1], epochs=2)
    train_here(whole)
    assert are_bitwise_equal(weights_at_end(longer), weights_at_end(whole))
    wider = make_config(tmp_path / "work", tiny_model, slices)
    assert _kinds(train_here(wider)) == ["segment_reused", "segment_started", "segment_finished"]
    assert _kinds(train_here(wider)) == ["segment_reused"] * 2


@pytest.mark.parametrize("step", [1, 4, 8])
def test_a_run_stopped_in_mid_segment_resumes_to_the_same_bits(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, clean: dict[str, Any], step: int
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices)
    with pytest.raises(StoppedError, match=f"before step {step + 1}") as caught:
        train_here(config, stop_after_step=step)
    assert caught.value.exit_code == 75
    events = train_here(config)
    first = next(event for event in events if event["event"] == "step")
    assert first["step"] == step + 1
    _assert_equals(config, clean)
    assert facts_of(config, 0 if step < 6 else 1)["num_resumes"] == 1
    assert not any((Path(config["work_dir"]) / "partial").iterdir())


def test_a_stop_at_the_end_of_a_segment_ends_before_the_next_one_begins(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, clean: dict[str, Any]
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices)
    with pytest.raises(StoppedError, match="before step 7"):
        train_here(config, stop_after_step=6)
    assert _kinds(train_here(config)) == ["segment_reused", "segment_started", "segment_finished"]
    _assert_equals(config, clean)


def test_a_stop_is_answered_long_before_the_next_log_point(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, clean: dict[str, Any]
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices, log_every_steps=1000)
    with pytest.raises(StoppedError, match="before step 2"):
        train_here(config, stop_after_step=0)
    assert [folder.name for folder in _partials(config, 0)] == ["step-00000001"]
    train_here(config)
    _assert_equals(config, clean)


@pytest.mark.parametrize("damage", ["truncated", "bit", "receipt", "receipt bit"])
def test_a_broken_checkpoint_is_never_used_and_the_one_before_it_is(
    tmp_path: Path,
    tiny_model: Path,
    slices: list[Path],
    train_here: Launch,
    clean: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices, checkpoint_every_steps=2)
    with pytest.raises(StoppedError):
        train_here(config, stop_after_step=5)
    older, newest = _partials(config, 0)
    assert (older.name, newest.name) == ("step-00000004", "step-00000005")
    if damage == "truncated":
        (newest / "weights.pt").write_bytes((newest / "weights.pt").read_bytes()[:-9])
    elif damage == "bit":
        _flip_a_bit(newest / "state.pt")
    elif damage == "receipt":
        (newest / "receipt.json").unlink()
    else:
        _flip_a_bit(newest / "receipt.json")
    with caplog.at_level(logging.WARNING):
        events = train_here(config)
    assert "NOT USED" in caplog.text
    started = next(event for event in events if event["event"] == "segment_started")
    assert started["resumed_at_step"] == 4
    (refused,) = [event for event in events if event["event"] == "checkpoint_not_used"]
    assert facts_of(config, 0)["checkpoints_not_used"] == [f"step-00000005: {refused['problem']}"]
    assert facts_of(config, 1)["checkpoints_not_used"] == []
    _assert_equals(config, clean)


def test_a_broken_segment_is_trained_anew_from_its_predecessor_and_its_successor_stays(
    tmp_path: Path,
    tiny_model: Path,
    slices: list[Path],
    train_here: Launch,
    clean: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices)
    train_here(config)
    _flip_a_bit(_segment_folder(config, 0) / "tiny_0-45-epoch-1.pt")
    with caplog.at_level(logging.WARNING):
        events = train_here(config)
    assert _kinds(events) == ["checkpoint_not_used", "segment_started", "segment_finished", "segment_reused"]
    assert "NOT USED" in caplog.text
    (reason,) = facts_of(config, 0)["checkpoints_not_used"]
    assert reason.startswith(f"{config['segments'][0]['fingerprint']}: tiny_0-45-epoch-1.pt has sha256 ")
    _assert_equals(config, clean)


def test_a_segment_that_began_from_other_weights_than_its_predecessors_end_is_not_reused(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices)
    train_here(config)
    other = make_config(tmp_path / "other", make_tiny_model(tmp_path / "model", seed=5), slices[:1], learning_rate=1e-3)
    other["segments"][0]["fingerprint"] = config["segments"][0]["fingerprint"]
    train_here(other)
    shutil.rmtree(_segment_folder(config, 0))
    shutil.copytree(_segment_folder(other, 0), _segment_folder(config, 0))
    events = train_here(config)
    assert _kinds(events) == ["segment_reused", "checkpoint_not_used", "segment_started", "segment_finished"]
    assert facts_of(config, 1)["start_checksum"] == facts_of(other, 0)["parameter_checksums"][0]
    assert facts_of(config, 1)["start_optimizer_checksum"] == facts_of(other, 0)["optimizer_checksums"][0]


def test_a_predecessor_that_cannot_be_loaded_is_refused_and_the_base_model_never_stands_in(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1])
    train_here(config)
    longer = make_config(tmp_path / "work", make_tiny_model(tmp_path / "wide", hidden_size=32), slices)
    longer["segments"][0]["fingerprint"] = config["segments"][0]["fingerprint"]
    with pytest.raises(BadCheckpointError, match="differences from the model"):
        train_here(longer)
    assert not _segment_folder(longer, 1).exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_nothing_of_it_is_saved(tmp_path: Path, train_here: Launch) -> None:
    model_dir, slice_dir, step = poisoned_run(tmp_path)
    config = make_config(tmp_path / "work", model_dir, [slice_dir], checkpoint_every_steps=1)
    with pytest.raises(DivergedError, match=rf"diverged at step {step}: loss is nan on every rank") as caught:
        train_here(config)
    assert caught.value.exit_code == 5
    assert not _segment_folder(config, 0).exists()
    assert [folder.name for folder in _partials(config, 0)][-1] == f"step-{step - 1:08d}"


def test_what_a_crash_left_in_mid_writing_is_removed_at_the_next_start(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1])
    left = Path(config["work_dir"]) / "segments" / f"{config['segments'][0]['fingerprint']}.tmp-1234"
    left.mkdir(parents=True)
    (left / "weights.pt").write_bytes(b"half")
    train_here(config)
    assert not left.exists()
    assert json.loads((_segment_folder(config, 0) / "receipt.json").read_bytes())["fingerprint"]


def test_a_checkpoint_of_other_versions_is_taken_up_with_a_warning_that_stays_in_the_segment(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices)
    with pytest.raises(StoppedError):
        train_here(config, stop_after_step=2)
    (partial,) = _partials(config, 0)
    _change_receipt(partial, versions={"python": "3.10.1", "torch": torch.__version__, "numpy": np.__version__})
    with pytest.raises(StoppedError), caplog.at_level(logging.WARNING):
        train_here(config, stop_after_step=6)
    python = f"python 3.10.1, then {platform.python_version()}"
    assert f"was saved with other versions ({python})" in caplog.text
    assert facts_of(config, 0)["version_drift"] == [python]
    _change_receipt(_segment_folder(config, 0), versions={"python": platform.python_version(), "torch": "2.0"})
    train_here(config)
    numpy, its_torch = f"numpy None, then {np.__version__}", f"torch 2.0, then {torch.__version__}"
    assert sorted(facts_of(config, 1)["version_drift"]) == [numpy, its_torch]


def _change_receipt(folder: Path, **changes: Any) -> None:
    receipt = json.loads((folder / "receipt.json").read_bytes()) | changes
    receipt.pop("digest")
    text = json.dumps(receipt | {"digest": digest_json(receipt)}, indent=2) + "\n"
    (folder / "receipt.json").write_text(text)
