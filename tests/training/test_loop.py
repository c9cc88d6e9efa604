"""Segments in order, stops and resumes: launches in this process."""

import json
import logging
import platform
import shutil
from pathlib import Path

import pytest
import torch

from tests.ledgers import read_ledger
from tests.training.conftest import (
    are_bitwise_equal,
    events_in,
    facts_of,
    folder_of,
    require_same_run,
    steps_of,
    weights_at_end,
)
from training.process.failure import StoppedError
from training.process.files import digest_json
from training.record.window import DivergenceRule


@pytest.fixture
def config(toy):
    """Of a run of both slices, once."""
    return toy.tell(num_slices=2, checkpoint_every_steps=2)


def _kinds(events):
    others = ("step", "launch_started", "launch_finished", "checkpoint_saved")
    return [event["event"] for event in events if event["event"] not in others]


def _assert_equals(config, clean):
    """Hold a disturbed run against the undisturbed one: bits, steps, ledger, totals."""
    require_same_run(config, clean, "segment_step", "step", "loss", "num_tokens")
    assert [line["segment_step"] for line in steps_of(config)] == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    for index in range(2):
        totals = ("num_steps", "num_samples", "num_tokens", "loss", "first_step", "last_step", "start_checksum")
        assert [facts_of(config, index)[key] for key in totals] == [facts_of(clean, index)[key] for key in totals]


def test_a_run_streams_what_it_does_and_its_totals_are_the_sums_of_its_steps(toy, train_here):
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
        assert ledger["num_tokens"].sum() == facts["num_tokens"]
    first, second = (facts_of(config, index) for index in range(2))
    assert second["start_checksum"] == first["parameter_checksums"][0]
    assert second["start_optimizer_checksum"] == first["optimizer_checksums"][0]


@pytest.mark.parametrize("keep", ["epochs", "last"])
def test_what_is_not_kept_of_a_finished_segment_trains_nothing_again_and_changes_no_bit(keep, toy, train_here, trained):
    config = toy.tell(num_slices=2, keep=keep)
    train_here(config)
    left = [{file.name for file in folder_of(config, index).glob("*.pt")} for index in range(2)]
    weights = "tiny_0-45-epoch-1.pt"
    assert left[0] == ({weights} if keep == "epochs" else set())
    assert len(left[1]) == 2
    assert _kinds(train_here(config)) == ["segment_reused"] * 2
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(trained(num_slices=2)))
    (folder_of(config, 0) / "steps.jsonl").unlink()
    assert _kinds(train_here(config))[:2] == ["checkpoint_not_used", "segment_started"], "records are never dropped"


@pytest.mark.parametrize(
    ("step", "log_every_steps", "changes"),
    [
        (0, 1000, {}), (4, 1, {"optimizer": "sgd"}), (6, 1, {}), (8, 1, {"optimizer": "sgd", "momentum": 0.0}),
    ],
)  # fmt: skip
def test_a_run_stopped_at_any_step_ends_long_before_a_log_point_and_resumes_to_the_same_bits(
    step, log_every_steps, changes, toy, train_here, trained, monkeypatch
):
    # As of many more steps: some are filed away before the end.
    monkeypatch.setattr("training.record.segment._STEPS_IN_MEMORY", 2)
    config = toy.tell(num_slices=2, log_every_steps=log_every_steps, **changes)
    stopped_at = max(step, 1)
    with pytest.raises(StoppedError, match=f"before step {stopped_at + 1}") as caught:
        train_here(config, stop_after_step=step)
    assert caught.value.exit_code == 75
    judged, take = [], DivergenceRule.take
    monkeypatch.setattr(
        DivergenceRule, "take",
        lambda rule, number, *loss, **of: (judged.append(number), take(rule, number, *loss, **of)),
    )  # fmt: skip
    events = train_here(config)
    # Losses of the segment's steps before the stop are judged with, too.
    assert judged == [*range(7 if step >= 6 else 1, 11)]
    assert next(event for event in events if event["event"] == "step")["step"] == stopped_at + 1
    if step == 6:
        assert _kinds(events) == ["segment_reused", "segment_started", "segment_finished"]
    assert [facts_of(config, index)["num_resumes"] for index in range(2)] == [step < 6, step > 6]
    _assert_equals(config, trained(num_slices=2, **changes))
    assert not list((Path(config["work_dir"]) / "partial").glob("*"))


def test_a_broken_segment_is_trained_anew_from_its_predecessor_and_its_successor_stays(config, train_here, trained):
    train_here(config)
    file = folder_of(config, 0) / "tiny_0-45-epoch-1.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    events = train_here(config)
    assert _kinds(events) == ["checkpoint_not_used", "segment_started", "segment_finished", "segment_reused"]
    (reason,) = facts_of(config, 0)["checkpoints_not_used"]
    assert reason.startswith(f"{config['segments'][0]['fingerprint']}: tiny_0-45-epoch-1.pt has sha256 ")
    _assert_equals(config, trained(num_slices=2))


def test_a_segment_that_began_from_other_weights_than_its_predecessors_end_is_not_reused(toy, config, train_here):
    train_here(config)
    other = toy.tell("other", learning_rate=1e-3)
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
    (partial,) = Path(config["work_dir"]).glob("partial/*/*")
    _change_version(partial, python="3.10.1")
    with pytest.raises(StoppedError), caplog.at_level(logging.WARNING):
        train_here(config, stop_after_step=6)
    python = f"python 3.10.1, then {platform.python_version()}"
    assert f"was saved with other versions ({python})" in caplog.text
    assert facts_of(config, 0)["version_drift"] == [python]
    _change_version(folder_of(config, 0), torch="2.0")
    train_here(config)
    assert facts_of(config, 1)["version_drift"] == [f"torch 2.0, then {torch.__version__}"]


def _change_version(folder, **version):
    receipt = json.loads((folder / "receipt.json").read_bytes())
    receipt.pop("digest")
    receipt["versions"] |= version
    text = json.dumps(receipt | {"digest": digest_json(receipt)}, indent=2) + "\n"
    (folder / "receipt.json").write_text(text)
