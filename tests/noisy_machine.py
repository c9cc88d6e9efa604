"""A machine whose true step times are known, with one trouble at a time, as real ones have them.

It stands in for the ranks and their clock (tasks/measuring/bench.py: Bench): what is measured on it is what the stage
`measure` would do, turn by turn and start by start.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tasks.measuring.arms import Arm
from tasks.measuring.speedups import measure_speedups
from tasks.measuring.turns import Timed, TimedTurns

STEPS_PER_BLOCK = 4
_STEP_SECONDS = 0.2
_LEAD_IN = 0.3
"""Of a step: what runs before the clock of a block starts."""
_JITTER = 0.04
"""Standard deviation of a single step, under every trouble."""
_MEAN_STALL_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What happens to a step; several may happen at once."""

    neighbour: tuple[tuple[float, float], ...] = ()
    """How much a neighbour slows (one rank, two ranks) down, at each of its levels; none: there is no neighbour."""
    neighbour_part: float = 0.5
    """Part of the time in which there is one, 0..1."""
    is_seen: bool = True
    """Whether the machine tells what the neighbour uses of its CPUs."""
    drift: float = 0.0
    """Standard deviation of the whole machine's speed."""
    drift_seconds: float = 30.0
    wander: float = 0.0
    """Standard deviation of an arm's own speed, within `wander_seconds`."""
    wander_seconds: float = 10.0
    start: float = 0.0
    """Standard deviation of an arm's speed from start to start of its ranks."""
    steps_alike: float = 0.0
    """Autocorrelation of an arm's steps."""
    stalls: tuple[float, float] = (0.0, 0.0)
    """Stalls per step of (one rank, two ranks), each exponential, 0.3 s in the mean: users pay them."""
    falling_clock: float = 0.0
    """By how much clocks have fallen in the end; most of it within 40 s."""
    background: float = 0.0
    """Share of the CPUs that something always uses, in the mean of blocks; it slows nothing down."""
    throttled: float = 0.0
    """By how much more the two ranks' clocks fall, as of devices that share a power limit."""


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

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._drift = float(self._random.normal())
        self._wander = [float(one) for one in self._random.normal(size=self.num_arms)]
        self._step = [float(one) for one in self._random.normal(size=self.num_arms)]
        self._level, self._level_ends = 0, 0.0
        self._start_ranks()

    @property
    def truth(self) -> float:
        """What users get: the ratio of expected seconds, stalls included, on the machine when it is quiet."""
        one, two = (_MEAN_STALL_SECONDS * rate for rate in self.trouble.stalls)
        return (_STEP_SECONDS + one) / (_STEP_SECONDS / self.speedup + two)

    def launch_again(self, arms: Sequence[Arm]) -> None:
        self._pass(self.start_seconds)
        self._launch += 1
        self._start_ranks()

    def run_turn(self, arms: Sequence[Arm], order: Iterator[list[str]], timed_turns: TimedTurns) -> None:
        self._turn += 1
        places = {arm.name: place for place, arm in enumerate(arms)}
        for name in next(order):
            timed_turns.add(self._run_block(name, places[name]))

    def _start_ranks(self) -> None:
        self._of_start = [math.exp(self.trouble.start * one) for one in self._random.normal(size=self.num_arms)]

    def _run_block(self, name: str, place: int) -> Timed:
        self._pass(_LEAD_IN * self._true_seconds(place))
        found = [self._run_step(place) for _ in range(STEPS_PER_BLOCK)]
        steps = np.array([seconds for seconds, _ in found])
        # The kernel counts ticks, and something small always runs.
        others = float(steps @ [share for _, share in found] / steps.sum()) + abs(float(self._random.normal(0, 0.008)))
        if self.trouble.background:
            others += max(float(self._random.normal(self.trouble.background, 0.015)), 0.0)
        return Timed(
            arm=name, turn=self._turn, launch=self._launch, step_seconds=steps[None, :], seconds=float(steps.mean()),
            data_wait_seconds=0.0, num_tokens=1, positions_by_rank=[1], num_samples=1,
            others_share=others,
        )  # fmt: skip

    def _true_seconds(self, place: int) -> float:
        return _STEP_SECONDS / (self.speedup if place else 1.0)

    def _run_step(self, place: int) -> tuple[float, float]:
        """Return the seconds of a step, and the share of the CPUs that others used."""
        trouble, share = self.trouble, 0.0
        alike = trouble.steps_alike
        self._step[place] = alike * self._step[place] + math.sqrt(1 - alike**2) * float(self._random.normal())
        slower = _JITTER * self._step[place] + trouble.drift * self._drift + trouble.wander * self._wander[place]
        seconds = self._true_seconds(place) * math.exp(slower) * self._of_start[place]
        fallen = 1 - math.exp(-self.now / 40)
        seconds *= 1 + trouble.falling_clock * fallen + (trouble.throttled * fallen if place else 0.0)
        level = self._find_level()
        if level:
            seconds *= trouble.neighbour[level - 1][min(place, 1)]
            share = 0.45 * level / len(trouble.neighbour) * trouble.is_seen
        if self._random.random() < trouble.stalls[min(place, 1)]:
            seconds += float(self._random.exponential(_MEAN_STALL_SECONDS))
        self._pass(seconds)
        return seconds, share

    def _find_level(self) -> int:
        """Return which level of the neighbour it is now, 0 without; each lasts some seconds."""
        levels = len(self.trouble.neighbour)
        while levels and self.now >= self._level_ends:
            part = self.trouble.neighbour_part
            is_there = self._random.random() < part if self._level_ends == 0.0 else self._level == 0
            self._level = int(self._random.integers(1, levels + 1)) if is_there else 0
            mean = 16.0 * (part if is_there else 1 - part)
            self._level_ends = max(self._level_ends, self.now) + float(self._random.exponential(mean))
        return self._level

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        kept = math.exp(-seconds / self.trouble.drift_seconds)
        self._drift = kept * self._drift + math.sqrt(1 - kept**2) * float(self._random.normal())
        kept = math.exp(-seconds / self.trouble.wander_seconds)
        self._wander = [
            kept * one + math.sqrt(1 - kept**2) * float(new)
            for one, new in zip(self._wander, self._random.normal(size=self.num_arms), strict=True)
        ]


TROUBLES: Mapping[str, Trouble] = {
    "none": Trouble(),
    "drift of the machine": Trouble(drift=0.05),
    "neighbour half the time that slows both down": Trouble(neighbour=((1.3, 1.3),)),
    "neighbour half the time": Trouble(neighbour=((1.03, 1.35),)),
    "neighbour a fifth of the time": Trouble(neighbour=((1.0, 1.5),), neighbour_part=0.2),
    "neighbour of two levels": Trouble(neighbour=((1.02, 1.18), (1.04, 1.36))),
    "an arm's own wander": Trouble(wander=0.05),
    "starts that differ": Trouble(start=0.03),
    "starts that differ a little": Trouble(start=0.01),
    "steps that are alike": Trouble(steps_alike=0.8),
    "stalls": Trouble(stalls=(0.02, 0.02)),
    "stalls of the whole machine": Trouble(stalls=(0.03, 0.02)),
    "stalls, twice as often with two ranks": Trouble(stalls=(0.02, 0.04)),
    "clocks that fall": Trouble(falling_clock=0.1),
}
"""Name -> one trouble; each is there in the measurement from its beginning to its end."""


HIDDEN_TROUBLES: Mapping[str, Trouble] = {
    "neighbour half the time, unseen": Trouble(neighbour=((1.03, 1.35),), is_seen=False),
    "an arm that wanders slowly": Trouble(wander=0.02, wander_seconds=30.0),
    "stalls of two ranks alone": Trouble(stalls=(0.0, 0.03)),
    "rare stalls, twice as often with two ranks": Trouble(stalls=(0.005, 0.01)),
}
"""The same, which leave too little trace in a session, so that its interval misses more often than it says."""


def _tabulate(num_sessions: int) -> None:
    """Print how often the interval covers the truth of each machine, and how wide it is: as in docs/intervals.md."""
    arms = [Arm(name=name, cell=name) for name in ("1proc", "2proc")]
    print("| trouble | covered | half-width, median | starts, mean | no interval |\n|---|---|---|---|---|")
    for name, trouble in {**TROUBLES, **HIDDEN_TROUBLES}.items():
        covered, widths, launches = list[bool](), list[float](), list[int]()
        for seed in range(num_sessions):
            machine = NoisyMachine(trouble, 1.5, seed)
            found = measure_speedups(
                arms, machine, half_width=0.03, max_seconds=60, most_share=0.05, of=lambda block: block.seconds,
                seed=seed, advance=lambda _: None, clock=lambda machine=machine: machine.now,
            )  # fmt: skip
            launches.append(found.num_launches)
            if found.intervals:
                covered.append(found.intervals["2proc"].contains(machine.truth))
                widths.append(found.intervals["2proc"].relative_half_width)
        print(
            f"| {name} | {np.mean(covered):.1%} | {np.median(widths):.1%} | {np.mean(launches):.1f} | "
            f"{1 - len(covered) / num_sessions:.0%} |".replace("%", " %")
        )


if __name__ == "__main__":
    _tabulate(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
