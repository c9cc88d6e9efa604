"""Two real ranks under a real torchrun on gloo: the same training, however it is disturbed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.ledgers import read_ledger
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import (
    are_bitwise_equal,
    events_in,
    facts_of,
    poisoned_run,
    relative_l2,
    start_ranks,
    weights_at_end,
)

pytestmark = pytest.mark.slow

_NUM_STEPS = (40, 120)


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    """Return `run_of_two(work_dir)`: the config of two ranks on two ragged slices, with dropout."""
    root = tmp_path_factory.mktemp("two")
    model = make_tiny_model(root / "model", dropout=0.1)
    slices = [
        make_slice(root / "0-158", num_rows=158),
        make_slice(root / "158-637", num_rows=479, first_row=158, seed=1),
    ]

    def config(work_dir: Path) -> dict[str, Any]:
        return make_config(
            work_dir, model, slices, cell="2proc", strategy="ddp", world_size=2,
            global_batch_size=4, micro_batch_size=1, checkpoint_every_steps=7, log_every_steps=2,
        )  # fmt: skip

    return config


@pytest.fixture(scope="module")
def clean(
    run_of_two: Callable[[Path], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, warm: Path
) -> dict[str, Any]:
    """An undisturbed run of two ranks."""
    config = run_of_two(tmp_path_factory.mktemp("clean") / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm / "python"))
        assert start_ranks(config).wait(timeout=300) == 0, _output(config)
    return config


def _output(config: dict[str, Any]) -> str:
    return (Path(config["work_dir"]) / "output.log").read_text()


def _stream(config: dict[str, Any]) -> list[dict[str, Any]]:
    return events_in(Path(config["work_dir"]) / "steps.jsonl")


def _start_and_wait_for_step(config: dict[str, Any], step: int) -> subprocess.Popen[bytes]:
    (Path(config["work_dir"]) / "steps.jsonl").unlink(missing_ok=True)
    torchrun = start_ranks(config)
    deadline = time.monotonic() + 120
    while not any(event.get("step", 0) >= step for event in _stream(config) if event["event"] == "step"):
        assert torchrun.poll() is None, _output(config)
        assert time.monotonic() < deadline, _output(config)
        time.sleep(0.005)
    return torchrun


def test_ddp_on_two_ranks_equals_single(
    clean: dict[str, Any], tmp_path: Path, train_here: Callable[..., list[dict[str, Any]]]
) -> None:
    config = {**clean, "strategy": "single", "world_size": 1, "work_dir": str(tmp_path / "work")}
    train_here(config)
    for index in range(2):
        assert relative_l2(weights_at_end(clean, index), weights_at_end(config, index)) < 2e-6
        two, one = facts_of(clean, index), facts_of(config, index)
        for key in ("num_steps", "num_samples", "num_tokens", "num_padding_tokens"):
            assert two[key] == one[key]
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_ranks_share_out_every_sample_and_end_with_the_same_parameters(clean: dict[str, Any]) -> None:
    for index, first_row in enumerate((0, 158)):
        facts = facts_of(clean, index)
        assert facts["num_steps"] == _NUM_STEPS[index]
        assert len(facts["parameter_checksums"]) == 2
        assert len(set(facts["parameter_checksums"])) == 1
        assert len(facts["optimizer_checksums"]) == 2
        assert len(set(facts["optimizer_checksums"])) == 1
        # The whole model is one bucket: one all-reduce per step, though each rank has two micro-batches.
        reduced = facts["traffic"]["all_reduce"]
        assert reduced["number"] == facts["num_steps"]
        assert len(facts["exchange"]["bucket_bytes"]) == 1
        assert reduced["num_bytes"] == facts["exchange"]["bucket_bytes"][0] * facts["num_steps"]
        assert facts["backend"] == "gloo"
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        assert [one["cpus"] for one in facts["rank_devices"]] == [cores, cores]
        assert [one["gpu_uuid"] for one in facts["rank_devices"]] == [None, None]
        assert list(facts["traffic"]) == ["all_reduce"]
        folder = Path(clean["work_dir"]) / "segments" / facts["fingerprint"]
        ledger = read_ledger(folder)
        assert sorted(ledger["row_id"]) == list(range(first_row, first_row + facts["num_samples"]))
        assert ledger["num_tokens"].sum() == facts["num_tokens"]
        shares = [int((ledger["rank"] == rank).sum()) for rank in range(2)]
        assert abs(shares[0] - shares[1]) <= 4


def test_stopped_and_killed_runs_resume_to_the_same_bits_and_leave_no_process(
    clean: dict[str, Any],
    run_of_two: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    warm: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = run_of_two(tmp_path / "work")

    torchrun = _start_and_wait_for_step(config, 20)
    torchrun.send_signal(signal.SIGTERM)
    assert torchrun.wait(timeout=120) != 0
    last = _stream(config)[-1]
    assert (last["event"], last["exit_code"]) == ("stopped", 75), _output(config)

    torchrun = _start_and_wait_for_step(config, 80)
    resumed = next(event for event in _stream(config) if event["event"] == "segment_started")
    assert resumed["resumed_at_step"] >= 20
    ranks = psutil.Process(torchrun.pid).children(recursive=True)
    assert len(ranks) >= 2
    os.kill(torchrun.pid, signal.SIGKILL)
    torchrun.wait(timeout=60)
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive

    # Nobody ends this one.
    monkeypatch.setattr(sys, "executable", str(warm / "python"))
    assert start_ranks(config).wait(timeout=300) == 0, _output(config)
    assert _stream(config)[0]["event"] == "launch_started"
    for index in range(2):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        fingerprint = config["segments"][index]["fingerprint"]
        folders = [Path(each["work_dir"]) / "segments" / fingerprint for each in (config, clean)]
        ours, theirs = (events_in(folder / "steps.jsonl") for folder in folders)
        assert [line["segment_step"] for line in ours] == list(range(1, _NUM_STEPS[index] + 1))
        assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]
        mine, other = map(read_ledger, folders)
        assert all(np.array_equal(mine[name], other[name]) for name in ("rank", "step", "row_id", "num_tokens"))


@pytest.mark.usefixtures("starts_warm")
def test_a_loss_that_is_not_finite_on_one_rank_stops_both_with_its_name(tmp_path: Path) -> None:
    model_dir, slice_dir, step = poisoned_run(tmp_path)
    config = make_config(tmp_path / "work", model_dir, [slice_dir], strategy="ddp", world_size=2)
    torchrun = start_ranks(config)
    assert torchrun.wait(timeout=120) != 0
    last = _stream(config)[-1]
    assert (last["event"], last["exit_code"]) == ("failed", 5), _output(config)
    output = _output(config)
    for rank in range(2):
        said = f"training: rank {rank}: diverged at step {step}: loss is nan on rank "
        assert output.count(said) == 1
        # One line on each rank; the rank that it names is the same.
        assert output.split(said)[1][0] == output.split("loss is nan on rank ")[1][0]
    assert "loop.py" not in output, "no traceback of ours: the one line says it"
    assert not list((tmp_path / "work" / "segments").glob("*"))
