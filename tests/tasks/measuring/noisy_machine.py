"""A machine whose true step times are known, with one trouble at a time, as real ones have them.

It stands in for the ranks and their clock (tasks/measuring/bench.py: Bench): what is measured on it is what the stage
`measure` would do, turn by turn and start by start.
"""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from tasks.measuring.arms import Arm
from tasks.measuring.speedups import measure_speedups
from tasks.measuring.turns import TimedBlock

STEPS_PER_BLOCK = 4
_STEP_SECONDS = 0.2
_LEAD_IN = 0.3
"""Of a step: what runs before the clock of a block starts."""
_JITTER = 0.04
"""Standard deviation of a single step, under every trouble."""
_MEAN_STALL_SECONDS = 0.3


def make_block(steps=((1.0,) * 4,), **changes):
    """Return a timed block of these seconds of steps, of each rank."""
    steps = np.array(steps)
    made = {
        "arm": "1proc", "turn": 1, "launch": 1, "step_seconds": steps, "seconds": float(steps.mean(axis=1).max()),
        "data_wait_seconds": 0.0, "num_tokens": 1, "positions_by_rank": [1], "num_samples": 1,
    }  # fmt: skip
    return TimedBlock(**made | changes)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What happens to a step; several may happen at once."""

    neighbour: tuple[tuple[float, float], ...] = ()
    """How much a neighbour slows (one rank, two ranks) down, at each of its levels; none: there is no neighbour."""
    neighbour_part: float = 0.5
    """Part of the time in which there is one, 0..1."""
    neighbour_seconds: float = 16.0
    """Mean of one that comes and one that goes, together."""
    is_seen: bool = True
    """Whether the machine tells what the neighbour uses of its CPUs."""
    drift: float = 0.0
    """Standard deviation of the whole machine's speed."""
    drift_seconds: float = 30.0
    wander: float = 0.0
    """Standard deviation of an arm's own speed, within `wander_seconds`."""
    wander_seconds: float = 10.0
    wanders_alone: bool = False
    """Whether the two ranks' arm alone does."""
    start: float = 0.0
    """Standard deviation of an arm's speed from start to start of its ranks."""
    slow_start: tuple[float, float] = (0.0, 0.0)
    """Part of the starts of two ranks in which they are slower, and by how much."""
    cold: tuple[float, float] = (0.0, 0.0)
    """By how much the first seconds of a start are slower, of (one rank, two ranks): falls to a third in 3 s."""
    shift: float = 0.0
    """By how much two ranks are slower from some moment of the first minute on."""
    steps_alike: float = 0.0
    """Autocorrelation of an arm's steps."""
    stalls: tuple[float, float] = (0.0, 0.0)
    """Stalls per step of (one rank, two ranks), each exponential, 0.3 s in the mean: users pay them."""
    falling_clock: float = 0.0
    """By how much clocks have fallen in the end; most of it within 40 s."""
    throttled: float = 0.0
    """By how much more the two ranks' clocks fall, as of devices that share a power limit; most of it within 20 s."""


@dataclass
class NoisyMachine:
    """Runs blocks of arms on a simulated clock: the first of one rank, all others of two."""

    trouble: Trouble
    speedup: float
    """Of a quiet machine, without stalls."""
    seed: int
    start_seconds: float = 5.0
    """What starting all ranks takes."""
    num_arms: int = 2
    """The first included."""
    now: float = 0.0
    """Seconds."""
    _launch: int = field(default=1, init=False)
    _turn: int = field(default=0, init=False)

    def __post_init__(self):
        self._random = np.random.default_rng(self.seed)
        self._drift = float(self._random.normal())
        self._wander = [float(one) for one in self._random.normal(size=self.num_arms)]
        self._step = [float(one) for one in self._random.normal(size=self.num_arms)]
        self._level, self._level_ends = 0, 0.0
        self._shifts_at = float(self._random.uniform(0, 60))
        self._start_ranks()

    @property
    def truth(self):
        """What users get: the ratio of expected seconds, stalls included, on the machine when it is quiet."""
        trouble, (one, two) = self.trouble, (_MEAN_STALL_SECONDS * rate for rate in self.trouble.stalls)
        slower = (1 + trouble.slow_start[0] * trouble.slow_start[1]) * (1 + trouble.shift / 2) * (1 + trouble.throttled)
        return (_STEP_SECONDS + one) / (_STEP_SECONDS / self.speedup * slower + two)

    def launch_again(self, arms):
        self._pass(self.start_seconds)
        self._launch += 1
        self._start_ranks()

    def run_turn(self, arms, order, timed_turns):
        self._turn += 1
        places = {arm.name: place for place, arm in enumerate(arms)}
        for name in next(order):
            timed_turns.add(self._run_block(name, places[name]))

    def _start_ranks(self):
        part, slower = self.trouble.slow_start
        self._of_start = [
            math.exp(self.trouble.start * one) * (1 + slower * (place > 0 and self._random.random() < part))
            for place, one in enumerate(self._random.normal(size=self.num_arms))
        ]
        self._started_at = self.now

    def _run_block(self, name, place):
        self._pass(_LEAD_IN * self._true_seconds(place))
        found = [self._run_step(place) for _ in range(STEPS_PER_BLOCK)]
        steps = np.array([seconds for seconds, _ in found])
        # The kernel counts ticks, and something small always runs.
        others = float(steps @ [share for _, share in found] / steps.sum()) + abs(float(self._random.normal(0, 0.008)))
        return make_block([steps], arm=name, turn=self._turn, launch=self._launch, others_share=others)

    def _true_seconds(self, place):
        return _STEP_SECONDS / (self.speedup if place else 1.0)

    def _run_step(self, place):
        """Return the seconds of a step, and the share of the CPUs that others used."""
        trouble, share = self.trouble, 0.0
        alike = trouble.steps_alike
        self._step[place] = alike * self._step[place] + math.sqrt(1 - alike**2) * float(self._random.standard_normal())
        slower = _JITTER * self._step[place] + trouble.drift * self._drift
        if place or not trouble.wanders_alone:
            slower += trouble.wander * self._wander[place]
        seconds = self._true_seconds(place) * math.exp(slower) * self._of_start[place]
        if trouble.falling_clock:
            seconds *= 1 + trouble.falling_clock * (1 - math.exp(-self.now / 40))
        if cold := trouble.cold[min(place, 1)]:
            seconds *= 1 + cold * math.exp((self._started_at - self.now) / 3)
        if place and trouble.throttled:
            seconds *= 1 + trouble.throttled * (1 - math.exp(-self.now / 20))
        if place:
            seconds *= 1 + trouble.shift * (self.now > self._shifts_at)
        level = self._find_level()
        if level:
            seconds *= trouble.neighbour[level - 1][min(place, 1)]
            share = 0.45 * level / len(trouble.neighbour) * trouble.is_seen
        if self._random.random() < trouble.stalls[min(place, 1)]:
            seconds += float(self._random.exponential(_MEAN_STALL_SECONDS))
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
            self._level_ends = max(self._level_ends, self.now) + float(self._random.exponential(mean))
        return self._level

    def _pass(self, seconds):
        self.now += seconds
        trouble, (drift, *wander) = self.trouble, self._random.standard_normal(1 + self.num_arms).tolist()
        # What has no effect costs no time: thousands of sessions are played.
        if trouble.drift:
            kept = math.exp(-seconds / trouble.drift_seconds)
            self._drift = kept * self._drift + math.sqrt(1 - kept**2) * drift
        if trouble.wander:
            kept = math.exp(-seconds / trouble.wander_seconds)
            moved = math.sqrt(1 - kept**2)
            self._wander = [kept * one + moved * new for one, new in zip(self._wander, wander, strict=True)]


TROUBLES, HIDDEN_TROUBLES = (
    {name: Trouble(**fields) for name, fields in table.items()}
    for table in YAML(typ="safe").load(Path(__file__).with_name("troubles.yaml")).values()
)
"""Name -> one trouble; the hidden ones leave too little trace in a session."""


@dataclass(kw_only=True)
class Row:
    """What sessions on one machine came to."""

    covered: list[bool] = field(default_factory=list)
    """Of those with an interval."""
    covered_where_narrow: list[bool] = field(default_factory=list)
    """Of those whose interval was as narrow as asked."""
    half_widths: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)

    @property
    def without_interval(self):
        """Part of the sessions."""
        return 1 - len(self.covered) / len(self.launches)


def measure_row(trouble, num_sessions):
    """Return what the default session of the stage `measure` comes to on a machine with this trouble."""
    arms, asked, row = [Arm(name=name, cell=name) for name in ("1proc", "2proc")], 0.07, Row()
    for seed in range(num_sessions):
        machine = NoisyMachine(trouble, 1.5, seed)
        found = measure_speedups(
            arms, machine, half_width=asked, max_seconds=90, burn_in_seconds=5, most_share=0.05,
            seconds_of=lambda block: block.seconds, seed=seed, advance=lambda _: None,
            clock=lambda machine=machine: machine.now,
        )  # fmt: skip
        row.launches.append(found.num_launches)
        if found.intervals:
            interval = found.intervals["2proc"]
            row.covered.append(interval.contains(machine.truth))
            row.half_widths.append(interval.relative_half_width)
            if interval.relative_half_width <= asked:
                row.covered_where_narrow.append(row.covered[-1])
    return row


def _tabulate(num_sessions):
    """Print how often the interval covers the truth of each machine, and how wide it is: as in docs/measuring.md."""
    print("| trouble | covered | where narrow | narrow | half-width, median | starts, mean | no interval |")
    print("|---|---|---|---|---|---|---|")
    every = Row()
    for name, trouble in {**TROUBLES, **HIDDEN_TROUBLES}.items():
        row = measure_row(trouble, num_sessions)
        for one in ("covered", "covered_where_narrow", "half_widths", "launches"):
            getattr(every, one).extend(getattr(row, one))
        print(_format_row(name, row))
    print(_format_row("**all**", every))


def _format_row(name, row):
    narrow = row.covered_where_narrow
    figures = (
        f"{np.mean(row.covered):.1%} | {np.mean(narrow) if narrow else math.nan:.0%} | "
        f"{len(narrow) / len(row.launches):.0%} | {np.median(row.half_widths):.1%} | {np.mean(row.launches):.1f} | "
        f"{row.without_interval:.0%}"
    )
    return f"| {name} | {figures.replace('%', ' %')} |"


if __name__ == "__main__":
    _tabulate(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
