"""Blocks of real optimizer steps, run by waiting ranks while everything else is idle."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tasks.machine.gpu_meter import GpuFigures, GpuMeter
from tasks.measuring.arms import Arm
from tasks.measuring.turns import TimedBlock, TimedTurns
from tasks.measuring.workers import Workers, restart_together
from training.record.cpu_use import compute_others_share

_FEWEST_STEPS = 4
"""Of a block: what its first step is owed to the block before is a small share of it."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, are spread evenly however many there are."""


class Bench:
    """The ranks of all cells, and which steps they run: the same ones in every arm of a turn."""

    def __init__(
        self, workers: Mapping[str, Workers], *, seed: int, meter: GpuMeter | None = None, holds_all: bool = True
    ) -> None:
        """Without `holds_all` memory has room for one variant, built anew at each turn."""
        self._workers = workers
        self._meter = meter or GpuMeter([])
        self.holds_all = holds_all
        """Whether every variant is built once."""
        self._held: Arm | None = None
        self._rng = np.random.default_rng(seed)
        self._num_steps = [1]
        self._turn = 0
        self._launch = 1
        self._own_processes: dict[str, list[int | None]] = {}
        """Arm -> processes on each of its GPUs in its first block of a launch, when nobody else has come yet."""
        self._place = float(self._rng.random())
        self._facts: dict[str, list[dict[str, Any]]] = {}
        self.steps_per_block = 1
        """Optimizer steps of a block."""
        self.timed: str | None = None
        """Name of the arm whose block runs or was the last to."""

    def build(self, arms: Iterable[Arm]) -> None:
        """Have every group build its arms' variants, all groups at once, so that no block pays for it."""
        if not self.holds_all:
            for arm in arms:
                self.make_ready(arm)
            return
        by_cell: dict[str, list[Arm]] = {}
        for arm in arms:
            by_cell.setdefault(arm.cell, []).append(arm)
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._build, by_cell.values()))
        self._count_steps()

    def _build(self, arms: Iterable[Arm]) -> None:
        """Have the arms' variants built by one group, if they are not, and note what its ranks say of them."""
        for arm in arms:
            self._facts[arm.name] = self._workers[arm.cell].ask(
                "facts", variant=dict(arm.variant), doing=f"building {arm.name}"
            )

    def _count_steps(self) -> None:
        """Count the steps of each range that every variant has; in weak scaling some have fewer."""
        counts = [fact["num_steps_of_segments"] for facts in self._facts.values() for fact in facts]
        self._num_steps = [min(numbers) for numbers in zip(*counts, strict=True)]

    def facts(self, arm: Arm) -> list[dict[str, Any]]:
        """Return what each rank said of a variant when it was built."""
        return self._facts[arm.name]

    def forget(self) -> None:
        """Have every group drop what it has built."""
        for group in self._workers.values():
            group.ask("forget", doing="dropping variants")
        self._facts.clear()
        self._held = None

    def make_ready(self, arm: Arm) -> None:
        """Have the arm's variant built, alone where memory has room for one: its ranks are about to be asked."""
        held = self._held
        if self.holds_all:
            return
        if held is not None:
            if (held.cell, held.variant) == (arm.cell, arm.variant):
                self._facts.setdefault(arm.name, self._facts[held.name])
                return
            self._workers[held.cell].ask("forget", doing=f"dropping {held.name}")
        self._held = arm
        self._build([arm])
        self._count_steps()

    def hold_one(self) -> None:
        """From here on build each variant anew at its turn."""
        self.forget()
        self.holds_all = False

    def restart(self, cell: str, arms: Iterable[Arm]) -> None:
        """Start the ranks of a cell anew, which have ended, and build these of its arms."""
        restart_together([self._workers[cell]])
        if self._held is not None and self._held.cell == cell:
            self._held = None
        self.build(arms)

    def launch_again(self, arms: Sequence[Arm]) -> None:
        """Start the ranks of all cells anew, all at once, and build these arms."""
        restart_together(self._workers.values())
        self._launch += 1
        self._own_processes.clear()
        self._facts.clear()
        self._held = None
        self.build(arms)

    def fetch_timers(self, arm: Arm) -> list[dict[str, float]]:
        """Return what each rank's strategy timed itself, in seconds; {} where it timed nothing."""
        self.make_ready(arm)
        outcome = self._workers[arm.cell].ask(
            "timers", variant=dict(arm.variant), doing=f"asking the ranks of {arm.name}"
        )
        return [{name: value for name, value in result.items() if name != "rank"} for result in outcome]

    def calibrate(self, arm: Arm, *, block_seconds: float) -> float:
        """Choose the steps of a block so that one of this arm takes about so long, and are at least four; return its
        seconds per step.
        """
        self.run(arm, self.choose_steps())
        seconds = self.run(arm, self.choose_steps()).seconds
        self.steps_per_block = max(_FEWEST_STEPS, min(round(block_seconds / seconds), 10_000))
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

    def run(self, arm: Arm, steps: Sequence[int]) -> TimedBlock:
        """Run one block."""
        self.timed = arm.name
        self.make_ready(arm)
        group = self._workers[arm.cell]
        segment, own = self._locate_steps(steps)
        block = {"steps": own, "segment": segment, "data": arm.data, "part": arm.part, "is_alone": arm.is_alone}
        started_at = time.time()
        with self._meter.span() as span:
            outcome = group.ask(
                "run", ranks=[0] if arm.is_alone else None, variant=dict(arm.variant), block=block,
                doing=f"timing {arm.name}",
            )  # fmt: skip
        gpus = span.gpus[: group.world_size]
        return TimedBlock(
            arm=arm.name,
            turn=self._turn,
            launch=self._launch,
            step_seconds=np.array([result["step_seconds"] for result in outcome]),
            seconds=max(result["seconds"] for result in outcome) / len(steps),
            data_wait_seconds=max(result["data_wait_seconds"] for result in outcome) / len(steps),
            num_tokens=sum(result["num_tokens"] for result in outcome),
            positions_by_rank=[result["num_positions"] for result in outcome],
            num_samples=sum(result["num_samples"] for result in outcome),
            others_share=compute_others_share([result["cpu_use"] for result in outcome]),
            facts={"range": group.ranges[segment], "steps": own, "ranks": outcome},
            gpus=gpus,
            has_others_on_gpu=self._find_others_on_gpu(arm, gpus),
            metered_seconds=span.seconds if gpus else 0.0,
            started_at=started_at,
        )

    def _find_others_on_gpu(self, arm: Arm, gpus: Sequence[GpuFigures]) -> bool:
        """Return whether a GPU has more processes than it had in the arm's first block since its ranks were started."""
        now = [gpu.num_processes for gpu in gpus]
        own = self._own_processes.setdefault(arm.name, now)
        return any(
            number is not None and known is not None and number > known for number, known in zip(now, own, strict=True)
        )

    def run_turn(self, arms: Sequence[Arm], order: Iterator[list[str]], timed_turns: TimedTurns) -> None:
        """Run one turn: a block of every arm in the order that comes next, all on the same steps."""
        by_name, steps = {arm.name: arm for arm in arms}, self.choose_steps()
        for name in next(order):
            timed_turns.add(self.run(by_name[name], steps))
