"""A machine whose true step times are known, with one trouble at a time, as real ones have them.

It stands in for the ranks and their clock (tasks/measuring/bench.py: Bench): what is measured on it is what the stage
`measure` would do, turn by turn and start by start.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from ruamel.yaml import YAML

from tasks.measuring.arms import Arm
from tasks.measuring.speedups import measure_speedups
from tasks.measuring.turns import TimedBlock

ARMS = [Arm(name=name, cell=name) for name in ("1proc", "2proc")]
HALF_WIDTH, NUM_SESSIONS = 0.07, 80
_STEP_SECONDS = 0.2, 0.2 / 1.5
"""Of (one rank, two ranks), on a quiet machine and without stalls."""
_MEAN_STALL_SECONDS = 0.3
_TABLES = YAML(typ="safe").load(Path(__file__).with_name("troubles.yaml"))


def make_trouble(**fields):
    """Return what happens on the machine: troubles.yaml tells each field."""
    assert fields.keys() <= _TABLES["quiet"].keys()
    return SimpleNamespace(**_TABLES["quiet"] | fields)


TROUBLES, HIDDEN_TROUBLES = (
    {name: make_trouble(**fields) for name, fields in _TABLES[table].items()} for table in ("shown", "hidden")
)
"""Name -> one trouble; the hidden ones leave too little trace in a session."""


def make_block(steps=((1.0,) * 4,), **changes):
    """Return a timed block of these seconds of steps, of each rank."""
    steps = np.array(steps)
    made = {
        "arm": "1proc", "turn": 1, "launch": 1, "step_seconds": steps, "seconds": float(steps.mean(axis=1).max()),
        "data_wait_seconds": 0.0, "num_tokens": 1, "positions_by_rank": [1], "num_samples": 1,
    }  # fmt: skip
    return TimedBlock(**made | changes)


@dataclass
class NoisyMachine:
    """Runs blocks of arms on a simulated clock: the first of one rank, all others of two."""

    trouble: SimpleNamespace
    seed: int
    now: float = 0.0
    """Seconds."""

    def __post_init__(self):
        self._launch, self._turn, self._random = 1, 0, np.random.default_rng(self.seed)
        self._drift = self._random.normal()
        self._wander, self._step = self._random.normal(size=2).tolist(), self._random.normal(size=2).tolist()
        self._level, self._level_ends = 0, 0.0
        self._shifts_at = self._random.uniform(0, 60)
        self._start_ranks()

    @property
    def truth(self):
        """What users get: the ratio of expected seconds, stalls included, on the machine when it is quiet."""
        trouble, (one, two) = self.trouble, (_MEAN_STALL_SECONDS * rate for rate in self.trouble.stalls)
        slower = (1 + trouble.slow_start[0] * trouble.slow_start[1]) * (1 + trouble.shift / 2) * (1 + trouble.throttled)
        return (_STEP_SECONDS[0] + one) / (_STEP_SECONDS[1] * slower + two)

    def launch_again(self, arms):
        # What starting all ranks takes.
        self._pass(5.0)
        self._launch += 1
        self._start_ranks()

    def run_turn(self, arms, order, timed_turns):
        self._turn += 1
        for name in next(order):
            timed_turns.add(self._run_block(name, int(name != arms[0].name)))

    def _start_ranks(self):
        part, slower = self.trouble.slow_start
        self._of_start = [
            math.exp(self.trouble.start * one) * (1 + slower * (place > 0 and self._random.random() < part))
            for place, one in enumerate(self._random.normal(size=2))
        ]
        self._started_at = self.now

    def _run_block(self, name, place):
        # What runs before the clock of a block starts.
        self._pass(0.3 * _STEP_SECONDS[place])
        steps, shares = np.transpose([self._run_step(place) for _ in range(4)])
        # The kernel counts ticks, and something small always runs.
        others = float(steps @ shares / steps.sum()) + abs(self._random.normal(0, 0.008))
        return make_block([steps], arm=name, turn=self._turn, launch=self._launch, others_share=others)

    def _run_step(self, place):
        """Return the seconds of a step, and the share of the CPUs that others used."""
        trouble, share = self.trouble, 0.0
        alike = trouble.steps_alike
        self._step[place] = alike * self._step[place] + math.sqrt(1 - alike**2) * self._random.standard_normal()
        # Under every trouble a single step varies by 4 %.
        slower = 0.04 * self._step[place] + trouble.drift * self._drift
        if place or not trouble.wanders_alone:
            slower += trouble.wander * self._wander[place]
        seconds = _STEP_SECONDS[place] * math.exp(slower) * self._of_start[place]
        seconds *= 1 + trouble.falling_clock * (1 - math.exp(-self.now / 40))
        seconds *= 1 + trouble.cold[place] * math.exp((self._started_at - self.now) / 3)
        if place:
            seconds *= 1 + trouble.throttled * (1 - math.exp(-self.now / 20))
            seconds *= 1 + trouble.shift * (self.now > self._shifts_at)
        if level := self._find_level():
            seconds *= trouble.neighbour[level - 1][place]
            share = 0.45 * level / len(trouble.neighbour) * trouble.is_seen
        if self._random.random() < trouble.stalls[place]:
            seconds += self._random.exponential(_MEAN_STALL_SECONDS)
        self._pass(seconds)
        return seconds, share

    def _find_level(self):
        """Return which level of the neighbour it is now, 0 without; each lasts some seconds."""
        levels = len(self.trouble.neighbour)
        while levels and self.now >= self._level_ends:
            part = self.trouble.neighbour_part
            is_there = self._random.random() < part if self._level_ends == 0.0 else self._level == 0
            self._level = int(self._random.integers(1, levels + 1)) if is_there else 0
            mean = self.trouble.neighbour_seconds * (part if is_there else 1 - part)
            self._level_ends = max(self._level_ends, self.now) + self._random.exponential(mean)
        return self._level

    def _pass(self, seconds):
        self.now += seconds
        trouble, (drift, *wander) = self.trouble, self._random.standard_normal(3).tolist()
        # What has no effect costs no time: thousands of sessions are played.
        if trouble.drift:
            kept = math.exp(-seconds / trouble.drift_seconds)
            self._drift = kept * self._drift + math.sqrt(1 - kept**2) * drift
        if trouble.wander:
            kept = math.exp(-seconds / trouble.wander_seconds)
            moved = math.sqrt(1 - kept**2)
            self._wander = [kept * one + moved * new for one, new in zip(self._wander, wander, strict=True)]


def measure_on(machine, arms=ARMS, **asked):
    """Return what the default session of the stage `measure` comes to on the machine; `asked`: what is not default."""
    asked = {"half_width": HALF_WIDTH, "max_seconds": 90, "burn_in_seconds": 5} | asked
    return measure_speedups(
        arms, machine, **asked, most_share=0.05, seconds_of=lambda block: block.seconds, seed=machine.seed,
        advance=lambda _: None, clock=lambda: machine.now,
    )  # fmt: skip


def measure_row(trouble, num_sessions=NUM_SESSIONS):
    """Return of sessions on a machine with this trouble whether each has an interval, one that covers the truth, and
    one as narrow as asked: (num_sessions, 3) bool."""
    row = np.zeros((num_sessions, 3), dtype=bool)
    for seed in range(num_sessions):
        machine = NoisyMachine(trouble, seed)
        if interval := measure_on(machine).intervals.get("2proc"):
            row[seed] = True, interval.contains(machine.truth), interval.relative_half_width <= HALF_WIDTH
    return row


def summarise(row):
    """Return the parts of sessions that cover, of those with an interval and of those with a narrow one; that have a
    narrow one; and that have none."""
    has_interval, covers, is_narrow = row.T
    where_narrow = covers[is_narrow].mean() if is_narrow.any() else math.nan
    return covers[has_interval].mean(), where_narrow, is_narrow.mean(), 1 - has_interval.mean()


if __name__ == "__main__":
    print("| trouble | covered | where narrow | narrow | no interval |\n|---|---|---|---|---|")
    rows = []
    for name, trouble in (TROUBLES | HIDDEN_TROUBLES).items():
        rows.append(measure_row(trouble, 200))
        print(f"| {name} |", *map("{:.1%} |".format, summarise(rows[-1])))
    print("| all |", *map("{:.1%} |".format, summarise(np.concatenate(rows))))
