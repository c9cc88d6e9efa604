"""Ranks and launchers that are killed, or asked to stop, at random moments."""

import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.chaos.course import Course, Launch, Launcher, Size
from tests.chaos.torchrun import Torchrun, ranks_below
from tests.chaos.trial import Trial
from training.process.failure import EXIT_PREEMPTED

_SIZE = Size(num_rows=318, epochs=2, global_batch_size=4, checkpoint_every_steps=5)
"""2 segments of 80 steps, each of a hundredth of a second, with 15 checkpoints."""
_SECONDS_TO_STOP = 5.0


def kill_trials(root: Path, launcher: Launcher, *, num_trials: int, seed: int = 0) -> Iterator[Trial]:
    """Kill a random rank at a random moment: half of them while ranks join and load, half while they train or save."""
    choose = random.Random(seed)
    course = Course(root, launcher, _SIZE)

    def kill(launch: Launch) -> None:
        launch.watch(until=launch.started + choose.uniform(0, 2 * course.start_seconds))
        launch.strike(signal.SIGKILL, [choose.choice(launch.pids)])

    yield from course.disturbed(kill, num_trials=num_trials)


def torchrun_kill_trials(root: Path, *, num_trials: int, seed: int = 1) -> Iterator[Trial]:
    """Kill, in turn, a random rank of a real torchrun and torchrun itself, at a random moment."""
    choose = random.Random(seed)
    course = Course(root, Torchrun(), _SIZE)
    is_torchruns_turn = False

    def kill(launch: Launch) -> None:
        nonlocal is_torchruns_turn
        launch.watch(until=launch.started + choose.uniform(0, 1.5 * course.start_seconds))
        ranks = ranks_below(launch.pids[0])
        launch.strike(signal.SIGKILL, launch.pids if is_torchruns_turn or not ranks else [choose.choice(ranks)])
        is_torchruns_turn = not is_torchruns_turn

    yield from course.disturbed(kill, num_trials=num_trials)


def stop_trials(
    root: Path, launcher: Launcher, *, num_trials: int, seed: int = 2, most_seconds: float = _SECONDS_TO_STOP
) -> Iterator[Trial]:
    """Send SIGTERM to all ranks at a random moment after the first step: nothing may be lost."""
    choose = random.Random(seed)
    course = Course(root, launcher, _SIZE)

    def stop(launch: Launch) -> None:
        launch.watch_first_step()
        launch.watch(until=time.perf_counter() + choose.uniform(0, course.start_seconds))
        launch.strike(signal.SIGTERM)
        launch.steps_lost_at_most = 0

    yield from course.disturbed(stop, num_trials=num_trials, check=partial(_check_stopped, most_seconds=most_seconds))


def _check_stopped(launch: Launch, *, most_seconds: float) -> None:
    if set(launch.exit_codes) != {EXIT_PREEMPTED}:
        launch.words.append(f"exit codes {launch.exit_codes}, wanted {EXIT_PREEMPTED}")
    assert launch.struck_at is not None
    seconds = launch.ended_at - launch.struck_at
    if seconds > most_seconds:
        launch.words.append(f"it took {seconds:.1f} s to stop, allowed are {most_seconds:.0f}")
