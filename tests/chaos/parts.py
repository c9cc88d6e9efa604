"""The rows of the table, in the long version."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.chaos import comparison, crash_points, damage, hangs, kills, ray_kills, soak, starts, stragglers
from tests.chaos.course import Size
from tests.chaos.saved import Saved
from tests.chaos.torchrun import Torchrun
from tests.chaos.trial import Part, Trial
from tests.training.forked_ranks import ForkedRanks

_SOAK = Size(num_rows=3200, epochs=10, global_batch_size=32, checkpoint_every_steps=10)
"""1,000 steps of a tenth of a second or so."""
_SECONDS_BETWEEN_FAULTS = 20.0
_WATCHDOG_SECONDS = 4.0


def _with_forked_ranks(trials: Callable[..., Iterator[Trial]], num_trials: int) -> Callable[[Path], Iterator[Trial]]:
    def run(root: Path) -> Iterator[Trial]:
        ranks = ForkedRanks()
        try:
            yield from trials(root, ranks, num_trials=num_trials)
        finally:
            ranks.close()

    return run


def _soak(root: Path) -> Iterator[Trial]:
    return soak.soak_trials(root, Torchrun(), _SOAK, seconds_between_faults=_SECONDS_BETWEEN_FAULTS)


def _hangs(root: Path) -> Iterator[Trial]:
    for trial in hangs.hang_trials(root, hangs.all_trials(), watchdog_seconds=_WATCHDOG_SECONDS, at_once=4):
        yield Trial(problem="" if trial.is_right else str(trial), seconds_lost=trial.seconds)


PARTS = [
    Part(
        key="kills",
        fault="SIGKILL to a random rank at a random moment",
        survives="clean run's weights to the bit, no process left, at most 5 steps lost",
        trials=_with_forked_ranks(kills.kill_trials, 300),
        num_trials=300,
    ),
    Part(
        key="torchrun",
        fault="SIGKILL to torchrun and to a rank of it, in turn",
        survives="the same",
        trials=partial(kills.torchrun_kill_trials, num_trials=20),
        num_trials=20,
    ),
    Part(
        key="sigterm",
        fault="SIGTERM to both ranks after the first step",
        survives="step saved, exit code 75 within 5 s, clean run's weights",
        trials=_with_forked_ranks(kills.stop_trials, 20),
        num_trials=20,
    ),
    Part(
        key="ray",
        fault="SIGKILL to actor, rank, raylet, stage, head of a Ray cluster, in turn; half of them while it starts",
        survives="one line, exit code 6 (4 while it starts), nobody left, torchrun's weights to the bit",
        trials=partial(ray_kills.ray_trials, num_trials=20),
        num_trials=20,
    ),
    Part(
        key="hangs",
        fault="a rank sleeps for ever, is stopped or keeps the interpreter's lock, in each section of a step",
        survives="rank, step and section named, all ended; 4 of the seconds are the watchdog's",
        trials=_hangs,
        num_trials=len(hangs.all_trials()),
    ),
    Part(
        key="stragglers",
        fault="a rank takes two or three times as long",
        survives="it alone is called a straggler",
        trials=_with_forked_ranks(stragglers.straggler_trials, 10),
        num_trials=10,
    ),
    Part(
        key="equal-ranks",
        fault="none: two equal ranks",
        survives="none is called a straggler",
        trials=_with_forked_ranks(stragglers.equal_trials, 20),
        num_trials=20,
    ),
    Part(
        key="crash-points",
        fault="death at every open, write, fsync, close, rename and removal of a save",
        survives="the previous or the new checkpoint loads, nothing half-written is left",
        trials=lambda root: crash_points.crash_trials(Saved(root)),
        num_trials=None,
    ),
    Part(
        key="bit-flips",
        fault="a flipped bit in a file of the newest checkpoint or its receipt",
        survives="seen, said, the previous checkpoint used",
        trials=lambda root: damage.flip_trials(Saved(root), num_trials=200),
        num_trials=200,
    ),
    Part(
        key="truncations",
        fault="a file of it cut off anywhere",
        survives="the same",
        trials=lambda root: damage.truncation_trials(Saved(root), num_trials=50),
        num_trials=50,
    ),
    Part(
        key="starts",
        fault="4 starts of one training at once",
        survives="exactly one trains, the others end with exit code 4",
        trials=partial(starts.start_trials, num_trials=20),
        num_trials=20,
    ),
    Part(
        key="comparison",
        fault="SIGKILL to shell, make, flow, server, runner, DVC, stage, torchrun, rank, in each stage, "
        "and two served runs that are cancelled",
        survives="nobody left, the server's flow goes on, the clean run's weights; seconds until nobody was left",
        trials=lambda root: comparison.comparison_trials(root, comparison.all_kills()),
        num_trials=len(comparison.all_kills()),
    ),
    Part(
        key="stops",
        fault="SIGSTOP to flow, server, DVC, stage, torchrun, rank, in the stages of a comparison, SIGCONT after 3 s",
        survives="it goes on, the clean run's weights",
        trials=lambda root: comparison.comparison_trials(root, comparison.all_stops()),
        num_trials=len(comparison.all_stops()),
    ),
    Part(
        key="soak",
        fault="1,000 steps, a fault of 8 kinds about every 20 s",
        survives="clean run's weights to the bit",
        trials=_soak,
        num_trials=None,
    ),
]
