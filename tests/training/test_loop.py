"""Segments in order, stops and resumes: launches in this process."""

import json
import logging
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ledgers import read_ledger
from tests.tiny import make_tiny_model
from tests.training.conftest import (
    are_bitwise_equal,
    events_in,
    facts_of,
    folder_of,
    learned_rows,
    steps_of,
    weights_at_end,
)
from training.data.batches import open_slice
from training.process.failure import StoppedError
from training.process.files import digest_json


@pytest.fixture
def clean(trained):
    """An undisturbed run: both slices, once."""
    return trained(num_slices=2)


@pytest.fixture
def config(toy):
    """The same, to be run here."""
    return toy.tell(num_slices=2, checkpoint_every_steps=2)


def _kinds(events):
    others = ("step", "launch_started", "launch_finished", "checkpoint_saved")
    return [event["event"] for event in events if event["event"] not in others]


def _partials(config):
    return sorted((Path(config["work_dir"]) / "partial" / config["segments"][0]["fingerprint"]).glob("*"))


def _flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def _assert_equals(config, clean):
    """Hold a disturbed run against the undisturbed one: bits, steps, ledger, totals."""
    same = ("segment_step", "step", "loss", "num_tokens")
    ours, theirs = ([[line[key] for key in same] for line in steps_of(each)] for each in (config, clean))
    assert ours == theirs
    assert [line[0] for line in ours] == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    for index in range(2):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        assert learned_rows(config, index) == learned_rows(clean, index)
        totals = ("num_steps", "num_samples", "num_tokens", "loss", "first_step", "last_step", "start_checksum")
        assert [facts_of(config, index)[key] for key in totals] == [facts_of(clean, index)[key] for key in totals]


def test_a_run_streams_what_it_does_and_its_totals_are_the_sums_of_its_steps(toy, slices, train_here):
    config = toy.tell(num_slices=2, log_every_steps=4)
    events = train_here(config)
    assert _kinds(events) == ["segment_started", "segment_finished"] * 2
    steps = [event for event in events if event["event"] == "step"]
    assert [step["step"] for step in steps] == list(range(1, 11))
    assert events[0]["num_steps"] == 10
    for index in range(2):
        facts, ledger = facts_of(config, index), read_ledger(folder_of(config, index))
        lines = events_in(folder_of(config, index) / "steps.jsonl")
        assert [line for line in steps if line["range"] == facts["range"]] == lines
        for name in ("num_tokens", "num_padding_tokens"):
            assert facts[name] == sum(line[name] for line in lines)
        assert facts["train_seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
        assert facts["tokens_per_second"] == pytest.approx(facts["num_tokens"] / facts["train_seconds"])
        weighted = sum(line["loss"] * line["num_tokens"] for line in lines) / facts["num_tokens"]
        assert facts["loss"] == pytest.approx(weighted)
        assert sorted(ledger["row_id"]) == open_slice(slices[index]).row_ids.tolist()
        assert ledger["num_tokens"].sum() == facts["num_tokens"]
    first, second = (facts_of(config, index) for index in range(2))
    assert second["start_checksum"] == first["parameter_checksums"][0]
    assert second["start_optimizer_checksum"] == first["optimizer_checksums"][0]


def test_one_more_epoch_or_range_reuses_the_finished_segments_and_what_a_crash_left_is_removed(
    toy, trained, train_here
):
    config = toy.tell()
    left = Path(config["work_dir"]) / "segments" / f"{config['segments'][0]['fingerprint']}.tmp-1234"
    left.mkdir(parents=True)
    train_here(config)
    assert not left.exists()
    longer, wider = toy.tell(epochs=2), toy.tell(num_slices=2)
    assert _kinds(train_here(longer)) == ["segment_reused", "segment_started", "segment_finished"]
    assert are_bitwise_equal(weights_at_end(longer), weights_at_end(trained(epochs=2)))
    assert _kinds(train_here(wider)) == ["segment_reused", "segment_started", "segment_finished"]
    assert _kinds(train_here(wider)) == ["segment_reused"] * 2


@pytest.mark.parametrize("keep", ["epochs", "last"])
def test_what_is_not_kept_of_a_finished_segment_trains_nothing_again_and_changes_no_bit(keep, toy, train_here, clean):
    config = toy.tell(num_slices=2, keep=keep)
    train_here(config)
    left = [{file.name for file in folder_of(config, index).glob("*.pt")} for index in range(2)]
    weights = "tiny_0-45-epoch-1.pt"
    assert left[0] == ({weights} if keep == "epochs" else set())
    assert len(left[1]) == 2
    assert _kinds(train_here(config)) == ["segment_reused"] * 2
    assert are_bitwise_equal(weights_at_end(config, 1), weights_at_end(clean, 1))
    (folder_of(config, 0) / "steps.jsonl").unlink()
    assert _kinds(train_here(config))[:2] == ["checkpoint_not_used", "segment_started"], "records are never dropped"


@pytest.mark.parametrize(("step", "log_every_steps"), [(0, 1000), (4, 1), (6, 1), (8, 1)])
def test_a_run_stopped_at_any_step_ends_long_before_a_log_point_and_resumes_to_the_same_bits(
    step, log_every_steps, toy, train_here, clean
):
    config = toy.tell(num_slices=2, log_every_steps=log_every_steps)
    stopped_at = max(step, 1)
    with pytest.raises(StoppedError, match=f"before step {stopped_at + 1}") as caught:
        train_here(config, stop_after_step=step)
    assert caught.value.exit_code == 75
    events = train_here(config)
    assert next(event for event in events if event["event"] == "step")["step"] == stopped_at + 1
    if step == 6:
        assert _kinds(events) == ["segment_reused", "segment_started", "segment_finished"]
    assert [facts_of(config, index)["num_resumes"] for index in range(2)] == [step < 6, step > 6]
    _assert_equals(config, clean)
    assert not list((Path(config["work_dir"]) / "partial").glob("*"))


def test_a_broken_segment_is_trained_anew_from_its_predecessor_and_its_successor_stays(config, train_here, clean):
    train_here(config)
    _flip_a_bit(folder_of(config, 0) / "tiny_0-45-epoch-1.pt")
    events = train_here(config)
    assert _kinds(events) == ["checkpoint_not_used", "segment_started", "segment_finished", "segment_reused"]
    (reason,) = facts_of(config, 0)["checkpoints_not_used"]
    assert reason.startswith(f"{config['segments'][0]['fingerprint']}: tiny_0-45-epoch-1.pt has sha256 ")
    _assert_equals(config, clean)


def test_a_segment_that_began_from_other_weights_than_its_predecessors_end_is_not_reused(toy, config, train_here):
    train_here(config)
    other = toy.tell("other", model=make_tiny_model(toy.folder / "model", seed=5), learning_rate=1e-3)
    other["segments"][0]["fingerprint"] = config["segments"][0]["fingerprint"]
    train_here(other)
    shutil.rmtree(folder_of(config, 0))
    shutil.copytree(folder_of(other, 0), folder_of(config, 0))
    events = train_here(config)
    assert _kinds(events) == ["segment_reused", "checkpoint_not_used", "segment_started", "segment_finished"]
    began, ended = facts_of(config), facts_of(other)
    assert began["start_checksum"] == ended["parameter_checksums"][0]
    assert began["start_optimizer_checksum"] == ended["optimizer_checksums"][0]


def test_a_checkpoint_of_other_versions_is_taken_up_with_a_warning_that_stays_in_the_segment(
    config, train_here, caplog
):
    with pytest.raises(StoppedError):
        train_here(config, stop_after_step=2)
    (partial,) = _partials(config)
    _change_versions(partial, python="3.10.1", torch=torch.__version__, numpy=np.__version__)
    with pytest.raises(StoppedError), caplog.at_level(logging.WARNING):
        train_here(config, stop_after_step=6)
    python = f"python 3.10.1, then {platform.python_version()}"
    assert f"was saved with other versions ({python})" in caplog.text
    assert facts_of(config, 0)["version_drift"] == [python]
    _change_versions(folder_of(config, 0), python=platform.python_version(), torch="2.0")
    train_here(config)
    numpy, its_torch = f"numpy None, then {np.__version__}", f"torch 2.0, then {torch.__version__}"
    assert sorted(facts_of(config, 1)["version_drift"]) == [numpy, its_torch]


def _change_versions(folder, **versions):
    receipt = json.loads((folder / "receipt.json").read_bytes()) | {"versions": versions}
    receipt.pop("digest")
    text = json.dumps(receipt | {"digest": digest_json(receipt)}, indent=2) + "\n"
    (folder / "receipt.json").write_text(text)
