"""When ranks are said to hang, and who: on ranks that are played by this process, and on real ones."""

import os
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tasks.process.failure import DistributedError, ExitCode
from tasks.ranks.cell_ranks import run_ranks
from tasks.ranks.watchdog import Watchdog
from tests.chaos.hangs import WATCHDOG_SECONDS, HangTrial, hang_trials, work_of
from tests.faults import plan_faults
from tests.processes import list_named
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, relative_l2, weights_at_end
from training.config import parse_config
from training.process import distributed
from training.process.heartbeat import NUM_COLLECTIVES, PID, Heartbeat, StepSection

_PATIENCE = 60.0


@pytest.fixture
def clock(monkeypatch):
    """The watchdog's, which stands still between looks."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("tasks.ranks.watchdog.time", clock)
    return clock


@pytest.fixture
def watchdog(clock):
    """One that looks at two ranks and waits for a minute."""
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


@pytest.fixture
def look(watchdog, clock):
    """Return `look(seconds)`: looks again and again, for so long or until something hangs."""

    def look(seconds):
        end = clock.now + seconds
        while clock.now < end:
            clock.now += 0.5
            if hang := watchdog.look():
                return hang
        return None

    return look


def test_the_rank_that_is_behind_is_named_and_those_that_wait_for_it_are_not(ranks, look):
    ranks[0].enter(StepSection.BACKWARD)
    hang = look(2 * _PATIENCE)
    assert (hang.ranks, hang.stopped) == ([1], [])
    said = "rank 1 hangs in section forward of step 7: nothing for 60 s; rank 0 is in section backward of step 7"
    assert str(hang) == said


def test_a_rank_may_wait_for_as_long_as_the_other_one_moves_on(ranks, look):
    ranks[0].begin(1000)
    for _ in range(15):
        ranks[1].enter(StepSection.FORWARD)
        assert look(_PATIENCE / 5) is None


def test_of_ranks_at_the_same_place_it_is_the_one_that_has_not_joined_the_collective(ranks, look):
    ranks[0]._words[NUM_COLLECTIVES], ranks[1]._words[NUM_COLLECTIVES] = 11, 12
    assert look(2 * _PATIENCE).ranks == [0]


def test_a_rank_that_a_signal_has_stopped_is_the_one(ranks, look, other):
    ranks[1]._words[PID] = other.pid
    os.kill(other.pid, signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    hang = look(2 * _PATIENCE)
    assert (hang.ranks, hang.stopped) == ([1], [1])
    assert "rank 1 was stopped by a signal, so that its stack cannot be had" in str(hang)


def test_starting_warming_up_and_large_checkpoints_are_given_more_time(ranks, look):
    for rank in ranks:
        rank.rest()
    assert look(2 * _PATIENCE) is None
    for rank in ranks:
        rank.set_patience(warm_up_seconds=72.0, checkpoint_bytes=2_400_000_000)
        rank.begin(8)
        rank.enter(StepSection.CHECKPOINT)
    assert look(2 * _PATIENCE) is None, "two minutes for its 2.4 GB, and then one"
    for rank in ranks:
        rank.begin(9)
    assert look(2 * _PATIENCE) is None, "a section may take 2.5 warm-ups, three minutes"
    assert look(2 * _PATIENCE) is not None


def test_ranks_wait_for_each_other_longer_than_the_watchdog_for_any_of_them(watchdog, ranks):
    ranks[0].rest()
    ranks[1].set_patience(warm_up_seconds=1.0, checkpoint_bytes=200 * 10**9)
    ranks[1].enter(StepSection.CHECKPOINT)
    assert max(map(watchdog._compute_patience, range(2))) < distributed._TIMEOUT.total_seconds()


def test_time_in_which_nobody_looked_says_nothing(watchdog, ranks, clock):
    assert watchdog.look() is None
    clock.now += 2 * _PATIENCE  # such as a stage that was itself stopped
    assert watchdog.look() is None


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
        ("hang", 1, "data"), ("hang", 0, "collective"), ("hang", 1, "checkpoint"), ("stop", 0, "forward"),
        ("freeze", 1, "backward"),
    ]  # fmt: skip
    failures = [
        ("raise", "backward", 6, "rank 1: RuntimeError: planned fault"),
        ("raise", "data", 6, "rank 1: RuntimeError: planned fault"),
        ("cuda", "forward", 6, "rank 1: AcceleratorError: CUDA error: device-side assert triggered"),
        ("sigkill", "update", 6, "rank 1 ended with exit code -9"),
        ("oom", "forward", 4, "rank 1: out of memory.*; micro_batch_size=1 cannot be made smaller"),
    ]
    others = [*failures, ("oom:1", "backward"), ("none", "update")]
    trials = [*hangs, *((kind, 1, section) for kind, section, *_ in others)]
    done = hang_trials(tmp_path, [HangTrial(*trial) for trial in trials])
    assert all(trial.num_left == 0 for trial in done)
    for trial in done[: -len(others)]:
        assert trial.is_right, trial
        # Those that are not found hang for ever.
        assert trial.seconds < WATCHDOG_SECONDS + 40, trial
    *failed, short, clean = done[-len(others) :]
    for trial, (_, _, exit_code, says) in zip(failed, failures, strict=True):
        assert (trial.exit_code, bool(re.search(says, trial.message))) == (exit_code, True), trial
    # The ranks that ran out of memory did the same work.
    assert (short.exit_code, clean.exit_code) == (0, 0), (short, clean)
    (segment,) = (work_of(tmp_path, clean) / "segments").iterdir()
    config = {"segments": [{"fingerprint": segment.name, "range": "0-80", "epoch": 1}], "model_name": "tiny"}
    ours, theirs = ({**config, "work_dir": str(work_of(tmp_path, trial))} for trial in (short, clean))
    assert facts_of(ours)["micro_batch_sizes"] == [2, 1]
    assert facts_of(theirs)["micro_batch_sizes"] == [2]
    for key in ("num_steps", "num_samples", "num_tokens"):
        assert facts_of(ours)[key] == facts_of(theirs)[key]
    assert relative_l2(weights_at_end(ours), weights_at_end(theirs)) < 2e-6
    assert not are_bitwise_equal(weights_at_end(ours), weights_at_end(theirs)), "smaller parts round otherwise"
    assert len(list((work_of(tmp_path, short) / "logs").iterdir())) == 2
