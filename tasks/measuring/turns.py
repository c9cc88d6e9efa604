"""Timed blocks by the turn they ran in: how many there are, and which turns were quiet."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tasks.machine.gpu_meter import GpuFigures


@dataclass(frozen=True, kw_only=True)
class TimedBlock:
    """One block, as its ranks timed it."""

    arm: str
    """Name of the arm."""
    turn: int
    """Blocks of one turn ran the same steps."""
    launch: int
    """Which launch of the ranks ran it, from 1."""
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
    others_share: float | None = None
    """Share of the CPUs of its ranks that others used meanwhile, 0..1; None where the machine does not tell."""
    facts: Mapping[str, Any] | None = None
    """What the gates are told of it: range, steps, and under `ranks` each rank's own words."""
    gpus: Sequence[GpuFigures] = ()
    """What the GPUs of the ranks did meanwhile, the block's lead-in included; empty on the CPU."""
    has_others_on_gpu: bool = False
    """Whether more processes computed on one of these than when the ranks had been started."""
    metered_seconds: float = 0.0
    """Seconds that those figures are of."""
    started_at: float | None = None
    """When it was asked for, seconds since 1970."""

    @property
    def whole_seconds(self) -> float:
        """Seconds of all its steps."""
        return self.seconds * self.step_seconds.shape[1]

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


@dataclass
class TimedTurns:
    """All blocks of one phase: one of every arm in each turn."""

    blocks: dict[str, list[TimedBlock]] = field(default_factory=dict)
    """Name of the arm -> its blocks in the order of time."""

    def add(self, block: TimedBlock) -> None:
        """Enter a block."""
        self.blocks.setdefault(block.arm, []).append(block)

    @property
    def turns(self) -> dict[int, list[TimedBlock]]:
        """Turn -> its blocks."""
        timeds: dict[int, list[TimedBlock]] = {}
        for blocks in self.blocks.values():
            for block in blocks:
                timeds.setdefault(block.turn, []).append(block)
        return timeds

    def select_quiet(
        self, most_share: float, *, arms: Collection[str] | None = None, fewest_of_launch: int = 1
    ) -> "TimedTurns":
        """Return the turns in which others used no more than that share of the CPUs while these arms' blocks ran, of
        launches that have so many of them; without `arms` those of every arm."""
        those = TimedTurns({arm: blocks for arm, blocks in self.blocks.items() if arms is None or arm in arms})
        quiet = {
            turn: blocks[0].launch
            for turn, blocks in those.turns.items()
            if all(is_quiet(block, most_share) for block in blocks)
        }
        of_launch = Counter(quiet.values())
        return those.select_turns({turn for turn, launch in quiet.items() if of_launch[launch] >= fewest_of_launch})

    def select_turns(self, turns: Collection[int]) -> "TimedTurns":
        """Return the blocks of these turns."""
        return TimedTurns(
            {arm: [block for block in blocks if block.turn in turns] for arm, blocks in self.blocks.items()}
        )

    def list_by_turn(self, arm: str, of: Callable[[TimedBlock], float] = lambda block: block.seconds) -> list[float]:
        """Return a figure of the arm, by default its seconds per step, turn by turn."""
        return [of(block) for block in self.blocks[arm]]

    def list_by_launch(
        self, arm: str, of: Callable[[TimedBlock], float] = lambda block: block.seconds
    ) -> list[list[float]]:
        """Return the same launch by launch."""
        results = defaultdict[int, list[float]](list)
        for block in self.blocks.get(arm, ()):
            results[block.launch].append(of(block))
        return list(results.values())


def choose_seconds(*, is_weak: bool) -> Callable[[TimedBlock], float]:
    """Return the seconds of a unit of work: in strong scaling all arms of a turn run the same rows, in weak not."""
    return (lambda block: block.whole_seconds / block.num_tokens) if is_weak else (lambda block: block.seconds)


def is_quiet(block: TimedBlock, most_share: float) -> bool:
    """Return whether others used no more than that share of the CPUs, and no GPU, while the block ran, as is known.

    With a share of 1 every block is quiet.
    """
    if block.has_others_on_gpu and most_share < 1:
        return False
    return block.others_share is None or block.others_share <= most_share


def generate_turns(arms: Sequence[str], *, seed: int) -> Iterator[list[str]]:
    """Yield turns without end: the arms in random order, then in the reverse of it (B A C, then C A B).

    What drifts evenly moves the one turn by as much as the next one back. Raises ValueError, at the first turn, if
    there is no arm or one stands twice.
    """
    if not arms or len(set(arms)) != len(arms):
        raise ValueError(f"arms must be given, each once; got {list(arms)}")
    random = Random(seed)
    while True:
        order = random.sample(list(arms), k=len(arms))
        yield order
        yield order[::-1]
