"""Blocks of real optimizer steps, run by waiting ranks while everything else is idle."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.machine.gpu_meter import GpuFigures, GpuMeter
from tasks.measuring.arms import Arm
from tasks.measuring.workers import Workers

_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, are spread evenly however many there are."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One block, as its ranks timed it."""

    arm: str
    """Name of the arm."""
    step_seconds: np.ndarray
    """(num_ranks, num_steps): seconds of every step on every rank that ran."""
    seconds: float
    """Seconds of the whole block on its slowest rank / number of steps."""
    data_wait_seconds: float
    """Seconds per step of the rank that waited longest for data."""
    num_tokens: int
    """Tokens learned from, all ranks and steps."""
    positions_by_rank: Sequence[int]
    """Positions computed by each rank that ran, padding included."""
    num_samples: int
    """Samples."""
    told: Mapping[str, Any] | None = None
    """What the gates are told of it: turn, range, steps, and under `ranks` each rank's own words."""
    gpus: Sequence[GpuFigures] = ()
    """What the GPUs of the ranks did meanwhile, the block's lead-in included; empty on the CPU."""
    metered_seconds: float = 0.0
    """Seconds that those figures are of."""

    @property
    def num_positions(self) -> int:
        """Positions computed by all ranks."""
        return sum(self.positions_by_rank)

    @property
    def first_rank_share(self) -> float:
        """The first rank's positions against the mean rank's; 1 where none were computed."""
        return (
            self.positions_by_rank[0] * len(self.positions_by_rank) / self.num_positions if self.num_positions else 1.0
        )

    @property
    def slowest_rank_seconds(self) -> float:
        """Mean over the steps of each step's slowest rank."""
        return float(self.step_seconds.max(axis=0).mean())

    @property
    def first_rank_seconds(self) -> float:
        """Mean over the first rank's steps."""
        return float(self.step_seconds[0].mean())

    @property
    def mean_rank_seconds(self) -> float:
        """Mean over steps and ranks."""
        return float(self.step_seconds.mean())


@dataclass
class Trials:
    """All blocks of one phase, arm by arm: two of every arm in each round."""

    blocks: dict[str, list[Timed]] = field(default_factory=dict)
    """Name of the arm -> its blocks in the order of time."""

    def add(self, block: Timed) -> None:
        """Enter a block."""
        self.blocks.setdefault(block.arm, []).append(block)

    def list_by_round(self, arm: str, of: Callable[[Timed], float] = lambda block: block.seconds) -> list[float]:
        """Return a figure of the arm round by round, the mean of its two blocks; by default seconds per step."""
        figures = self.list_by_turn(arm, of)
        return [(first + second) / 2 for first, second in zip(figures[::2], figures[1::2], strict=True)]

    def list_by_turn(self, arm: str, of: Callable[[Timed], float] = lambda block: block.seconds) -> list[float]:
        """Return the same block by block; the blocks of two arms at one place ran the same steps, in half a round."""
        return [of(block) for block in self.blocks[arm]]


class Bench:
    """The ranks of all cells, and which steps they run: the same ones in every arm of a turn."""

    def __init__(
        self, workers: Mapping[str, Workers], *, seed: int, meter: GpuMeter | None = None, holds_all: bool = True
    ) -> None:
        """With `holds_all` every variant is built once; without, memory has room for one, built anew at each turn."""
        self._workers = workers
        self._meter = meter
        self._holds_all = holds_all
        self._held: Arm | None = None
        self._rng = np.random.default_rng(seed)
        self._num_steps = [1]
        self._turn = 0
        self._place = float(self._rng.random())
        self._facts: dict[str, list[dict[str, Any]]] = {}
        self.steps_per_block = 1
        """Optimizer steps of a block."""
        self.timed: str | None = None
        """Name of the arm whose block runs or was the last to."""

    def build(self, arms: Iterable[Arm]) -> None:
        """Have every group build its arms' variants, all groups at once, so that no block pays for it."""
        if not self._holds_all:
            for arm in arms:
                self._hold(arm)
            return
        by_cell: dict[str, list[Arm]] = {}
        for arm in arms:
            by_cell.setdefault(arm.cell, []).append(arm)

        def build(cell: str) -> None:
            for arm in by_cell[cell]:
                facts = self._workers[cell].ask("facts", variant=dict(arm.variant), doing=f"building {arm.name}")
                self._facts[arm.name] = facts

        with ThreadPoolExecutor() as threads:
            list(threads.map(build, by_cell))
        self._count_steps()

    def _count_steps(self) -> None:
        """Count the steps of each range that every variant has; in weak scaling some have fewer."""
        counts = [one["num_steps_of_segments"] for facts in self._facts.values() for one in facts]
        self._num_steps = [min(numbers) for numbers in zip(*counts, strict=True)]

    def _hold(self, arm: Arm) -> None:
        """Drop what is built, unless it is this arm's variant, and build that."""
        held = self._held
        if held is not None and (held.cell, held.variant) == (arm.cell, arm.variant):
            self._facts.setdefault(arm.name, self._facts[held.name])
            return
        if held is not None:
            self._workers[held.cell].ask("forget", doing=f"dropping {held.name}")
        self._held = arm
        facts = self._workers[arm.cell].ask("facts", variant=dict(arm.variant), doing=f"building {arm.name}")
        self._facts[arm.name] = facts
        self._count_steps()

    def facts(self, arm: Arm) -> list[dict[str, Any]]:
        """Return what each rank said of a variant when it was built."""
        return self._facts[arm.name]

    def forget(self) -> None:
        """Have every group drop what it has built."""
        for group in self._workers.values():
            group.ask("forget", doing="dropping variants")
        self._facts.clear()
        self._held = None

    def restart(self, cell: str, arms: Iterable[Arm]) -> None:
        """Start the ranks of a cell anew, which have ended, and build these of its arms."""
        self._workers[cell].restart()
        self.build(arms)

    def fetch_ddp_timers(self, arm: Arm) -> dict[str, float]:
        """Return what DDP timed itself on the slowest rank, in seconds; {} if it timed nothing."""
        if not self._holds_all:
            self._hold(arm)
        found = self._workers[arm.cell].ask("timers", variant=dict(arm.variant), doing=f"asking DDP about {arm.name}")
        slowest = max(found, key=lambda one: one.get("backward_comm", 0.0))
        return {name: value for name, value in slowest.items() if name != "rank"}

    def calibrate(self, arm: Arm, *, block_seconds: float) -> float:
        """Choose the steps of a block so that one of this arm takes about so long; return its seconds per step."""
        self.run(arm, self.choose_steps())
        seconds = self.run(arm, self.choose_steps()).seconds
        self.steps_per_block = max(1, min(round(block_seconds / seconds), 10_000))
        return seconds

    def choose_steps(self) -> list[int]:
        """Return the steps of the next turn: consecutive ones of one range, counted from 1 over all ranges.

        Where they begin goes round all ranges, from a random place, so that each is there as often as it has steps.
        """
        self._turn += 1
        self._place = (self._place + _GOLDEN) % 1.0
        segment, (start,) = self._locate_steps([int(self._place * sum(self._num_steps)) + 1])
        before, number = sum(self._num_steps[:segment]), self._num_steps[segment]
        return [before + (start - 1 + turn) % number + 1 for turn in range(self.steps_per_block)]

    def _locate_steps(self, steps: Sequence[int]) -> tuple[int, list[int]]:
        """Return the range of these steps, from 0, and which of its steps they are."""
        ends = np.cumsum(self._num_steps)
        segment = min(int(np.searchsorted(ends, steps[0])), len(ends) - 1)
        return segment, [step - int(ends[segment]) + self._num_steps[segment] for step in steps]

    def run(self, arm: Arm, steps: Sequence[int]) -> Timed:
        """Run one block."""
        self.timed = arm.name
        if not self._holds_all:
            self._hold(arm)
        group = self._workers[arm.cell]
        ranks = [0] if arm.is_alone else None
        segment, own = self._locate_steps(steps)
        block = {"steps": own, "segment": segment, "data": arm.data, "part": arm.part, "is_alone": arm.is_alone}
        asked: dict[str, Any] = {"variant": dict(arm.variant), "block": block, "doing": f"timing {arm.name}"}
        figures = None
        if self._meter is None:
            found = group.ask("run", ranks=ranks, **asked)
        else:
            with self._meter.span() as span:
                found = group.ask("run", ranks=ranks, **asked)
            figures = span.figures
        return Timed(
            arm=arm.name,
            step_seconds=np.array([one["step_seconds"] for one in found]),
            seconds=max(one["seconds"] for one in found) / len(steps),
            data_wait_seconds=max(one["data_wait_seconds"] for one in found) / len(steps),
            num_tokens=sum(one["num_tokens"] for one in found),
            positions_by_rank=[one["num_positions"] for one in found],
            num_samples=sum(one["num_samples"] for one in found),
            told={"turn": self._turn, "range": group.ranges[segment], "steps": own, "ranks": found},
            gpus=figures.gpus[: group.world_size] if figures else (),
            metered_seconds=figures.seconds if figures else 0.0,
        )

    def run_round(self, arms: Sequence[Arm], order: Iterator[list[str]], trials: Trials) -> None:
        """Run one round: every arm twice, in the order given and its mirror image; each half on steps of its own."""
        by_name = {arm.name: arm for arm in arms}
        names = next(order)
        for half in (names[: len(arms)], names[len(arms) :]):
            steps = self.choose_steps()
            for name in half:
                trials.add(self.run(by_name[name], steps))
