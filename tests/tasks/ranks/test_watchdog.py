"""When ranks are said to hang, and who: on ranks that are played by this process, and on real ones."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from tasks.process.failure import DistributedError, ExitCode
from tasks.ranks.cell_ranks import run_ranks
from tasks.ranks.watchdog import Watchdog
from tests.chaos.hangs import HangTrial, hang_trials, work_of
from tests.faults import plan_faults
from tests.processes import list_named
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, relative_l2, weights_at_end
from training.config import parse_config
from training.process import distributed
from training.process.heartbeat import NUM_COLLECTIVES, PID, Heartbeat, StepSection

_PATIENCE = 0.5


@pytest.fixture
def watchdog():
    """One that looks at two ranks and waits for half a second."""
    with Watchdog(world_size=2, step_seconds=_PATIENCE) as watchdog:
        yield watchdog


@pytest.fixture
def ranks(watchdog):
    """Two ranks in step 7, both in the forward pass."""
    ranks = [Heartbeat(watchdog.file, rank=rank) for rank in range(2)]
    for rank in ranks:
        rank.begin(7)
        rank.enter(StepSection.FORWARD)
    return ranks


@pytest.fixture
def other():
    """A process that is no rank."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def _look(watchdog, seconds):
    """Look as often as a stage does, for so long or until something hangs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if hang := watchdog.look():
            return hang
        time.sleep(0.02)
    return None


def test_the_rank_that_is_behind_is_named_and_those_that_wait_for_it_are_not(watchdog, ranks):
    ranks[0].enter(StepSection.BACKWARD)
    hang = _look(watchdog, 3)
    assert (hang.ranks, hang.stopped) == ([1], [])
    assert re.fullmatch(
        r"rank 1 hangs in section forward of step 7: nothing for \d+ s; rank 0 is in section backward of step 7",
        str(hang),
    )


def test_a_rank_may_wait_for_as_long_as_the_other_one_moves_on(watchdog, ranks):
    ranks[0].begin(1000)
    deadline = time.monotonic() + 3 * _PATIENCE
    while time.monotonic() < deadline:
        ranks[1].enter(StepSection.FORWARD)
        assert _look(watchdog, _PATIENCE / 5) is None


def test_of_ranks_at_the_same_place_it_is_the_one_that_has_not_joined_the_collective(watchdog, ranks):
    ranks[0]._words[NUM_COLLECTIVES], ranks[1]._words[NUM_COLLECTIVES] = 11, 12
    hang = _look(watchdog, 3)
    assert hang.ranks == [0]


def test_a_rank_that_a_signal_has_stopped_is_the_one(watchdog, ranks, other):
    ranks[1]._words[PID] = other.pid
    os.kill(other.pid, signal.SIGSTOP)
    hang = _look(watchdog, 3)
    assert (hang.ranks, hang.stopped) == ([1], [1])
    assert "rank 1 was stopped by a signal, so that its stack cannot be had" in str(hang)


def test_starting_warming_up_and_large_checkpoints_are_given_more_time(watchdog, ranks):
    for rank in ranks:
        rank.rest()
    assert _look(watchdog, 2 * _PATIENCE) is None
    for rank in ranks:
        rank.set_patience(warm_up_seconds=0.6, checkpoint_bytes=20_000_000)
        rank.begin(8)
        rank.enter(StepSection.CHECKPOINT)
    assert _look(watchdog, 2 * _PATIENCE) is None, "a second for its 20 MB, and then half a second"
    for rank in ranks:
        rank.begin(9)
    assert _look(watchdog, 2 * _PATIENCE) is None, "a section may take 2.5 warm-ups, 1.5 s"
    assert _look(watchdog, 3) is not None


def test_ranks_wait_for_each_other_longer_than_the_watchdog_for_any_of_them(watchdog, ranks):
    ranks[0].rest()
    ranks[1].set_patience(warm_up_seconds=1.0, checkpoint_bytes=200 * 10**9)
    ranks[1].enter(StepSection.CHECKPOINT)
    assert max(map(watchdog._compute_patience, range(2))) < distributed._TIMEOUT.total_seconds()


def test_time_in_which_nobody_looked_says_nothing(watchdog, ranks):
    with Watchdog(world_size=2, step_seconds=2.0) as patient:
        for rank in range(2):
            Heartbeat(patient.file, rank=rank).begin(1)
        assert patient.look() is None
        time.sleep(2.5)  # such as a stage that was itself stopped
        assert patient.look() is None


def test_only_processes_that_said_they_were_ranks_are_ended(watchdog, ranks, other):
    # Not the process that was seen under this number.
    ranks[0]._words[PID] = other.pid
    watchdog._born[other.pid] = 1.0
    ranks[1]._words[PID] = 0
    watchdog.end_ranks()
    assert other.poll() is None


@pytest.mark.slow
def test_a_rank_that_hangs_under_torchrun_is_found_and_the_next_run_goes_on(tmp_path, monkeypatch, warm):
    monkeypatch.setattr(sys, "executable", str(warm / "python"))
    config = make_config(
        tmp_path / "work", make_tiny_model(tmp_path / "model"), [make_slice(tmp_path / "slice", num_rows=60)],
        strategy="ddp", world_size=2, checkpoint_every_steps=2,
    )  # fmt: skip
    events = []

    def run():
        run_ranks(
            parse_config(config), launcher="torchrun", stop=threading.Event(), follow=events.extend, watchdog_seconds=3
        )

    planned = plan_faults("rank=1,step=5,kind=stop,section=backward")
    for name, value in planned.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match="rank 1 hangs in section backward of step 5: nothing for 3 s") as caught:
        run()
    assert caught.value.exit_code == ExitCode.DISTRIBUTED == 6
    assert "stopped by a signal, so that its stack cannot be had" in str(caught.value)
    assert not list_named(tmp_path)
    (log,) = (tmp_path / "work" / "logs").glob("*/*/attempt_0/0/stderr.log")
    assert "in _engine_run_backward" in log.read_text(), "rank 0 waits for it in the exchange of gradients"
    for name in planned:
        monkeypatch.delenv(name)
    events.clear()
    run()
    assert next(event for event in events if event["event"] == "segment_started")["resumed_at_step"] == 4
    assert facts_of(config)["num_steps"] == 8


@pytest.mark.slow
def test_hangs_and_failures_name_who_where_and_when_and_leave_nobody(tmp_path):
    hangs = [
        HangTrial("hang", 1, "data"), HangTrial("hang", 0, "collective"), HangTrial("hang", 1, "checkpoint"),
        HangTrial("stop", 0, "forward"), HangTrial("freeze", 1, "backward"),
    ]  # fmt: skip
    others = [
        HangTrial(kind, 1, section)
        for kind, section in (
            ("raise", "backward"), ("raise", "data"), ("cuda", "forward"), ("sigkill", "update"), ("oom", "forward"),
            ("oom:1", "backward"), ("none", "update"),
        )
    ]  # fmt: skip
    done = hang_trials(tmp_path, [*hangs, *others], watchdog_seconds=4, at_once=4)
    for trial in done[: len(hangs)]:
        assert trial.is_right, trial
        assert trial.seconds is not None
        # Those that are not found hang for ever.
        assert trial.seconds < 4 + 40, trial
    by_kind = {(trial.kind, trial.section): trial for trial in done[len(hangs) :]}
    assert all(trial.num_left == 0 for trial in done)
    for key, exit_code, says in (
        (("raise", "backward"), 6, "rank 1: RuntimeError: planned fault"),
        (("raise", "data"), 6, "rank 1: RuntimeError: planned fault"),
        (("cuda", "forward"), 6, "rank 1: AcceleratorError: CUDA error: device-side assert triggered"),
        (("sigkill", "update"), 6, "rank 1 ended with exit code -9"),
        (("oom", "forward"), 4, "rank 1: out of memory"),
    ):
        assert by_kind[key].exit_code == exit_code, by_kind[key]
        assert says in by_kind[key].message, by_kind[key]
    assert "micro_batch_size=1 cannot be made smaller" in by_kind["oom", "forward"].message
    _went_on_with_smaller_micro_batches(tmp_path, by_kind["oom:1", "backward"], by_kind["none", "update"])


def _went_on_with_smaller_micro_batches(folder, short, clean):
    """Check that the ranks that ran out of memory did the same work, and what they say of it."""
    assert (short.exit_code, clean.exit_code) == (0, 0), (short, clean)
    (segment,) = (work_of(folder, clean) / "segments").iterdir()
    config = {"segments": [{"fingerprint": segment.name, "range": "0-80", "epoch": 1}], "model_name": "tiny"}
    ours, theirs = ({**config, "work_dir": str(work_of(folder, trial))} for trial in (short, clean))
    assert facts_of(ours)["micro_batch_sizes"] == [2, 1]
    assert facts_of(theirs)["micro_batch_sizes"] == [2]
    for key in ("num_steps", "num_samples", "num_tokens"):
        assert facts_of(ours)[key] == facts_of(theirs)[key]
    assert relative_l2(weights_at_end(ours), weights_at_end(theirs)) < 2e-6
    assert not are_bitwise_equal(weights_at_end(ours), weights_at_end(theirs)), "smaller parts round otherwise"
    assert len(list((work_of(folder, short) / "logs").iterdir())) == 2
