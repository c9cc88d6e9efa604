"""Our step against one peer's: blocks in turns until the interval of their ratio is narrow, or the time is over.

What was to be reached is judged by the lower end of the interval, never by its middle.
"""

import dataclasses
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rounds import FEWEST_ROUNDS, MIN_ROUNDS, Stopping, average_pairs, compute_ratio, generate_rounds
from benchmarks.throughput.groups import Blocks, Setup, groups
from tasks.records.estimate import Estimate

OURS = "ours"
LOSS_TOLERANCE = 1e-4
"""Largest relative difference of a block's loss from ours, in fp32: the same rows, other orders of summing."""
_LOSS_TOLERANCES = {"fp32": LOSS_TOLERANCE, "bf16": 2e-2, "fp16": 2e-2}


PEERS = {
    "published": "(a) loop as published",
    "published_fp32": "(a) loop as published, in fp32",
    "trainer": "(b) transformers.Trainer",
    "accelerated": "(c) accelerate loop",
}
_LEAST_RATIOS = {
    "cpu": {"published": 2.5, "trainer": 1.1, "accelerated": 1.1},
    "cuda": {"published": 10.0, "published_fp32": 10.0, "trainer": 1.3, "accelerated": 1.3},
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finished contest of two."""

    setup: Setup
    """What was compared."""
    peer: str
    """Name of a file in benchmarks/throughput/peers/."""
    settings: Mapping[str, dict[str, Any]]
    """Of both."""
    blocks: dict[str, Blocks]
    """Of both."""
    ratio: Estimate | None
    """Units per second of ours / of the peer; None of fewer rounds than an interval needs."""
    stopped_because: str
    """In words."""
    load: float
    """Load average of five minutes when it ended, its own processes included."""

    @property
    def num_rounds(self):
        """Return the rounds of two blocks of each."""
        return len(self.blocks[OURS].seconds) // 2

    @property
    def cpu_ratio(self):
        """Return CPU seconds of the peer / of ours, which other load hardly changes; without the wait for others."""
        return _estimate({name: blocks.cpu_seconds for name, blocks in self.blocks.items()}, self.peer)

    @property
    def largest_loss_difference(self):
        """Return that of any block from ours, relative."""
        pairs = zip(self.blocks[self.peer].losses, self.blocks[OURS].losses, strict=True)
        return max(abs(theirs / ours - 1) if ours else math.inf for theirs, ours in pairs)

    @property
    def losses_agree(self):
        """Whether both did the same work, by their losses."""
        return self.largest_loss_difference <= _LOSS_TOLERANCES[self.setup.precision]

    def units_per_second(self, name):
        """Return the real tokens, or the images, of the blocks of one of both / their seconds."""
        return sum(self.blocks[name].num_units) / sum(self.blocks[name].seconds)

    def as_json(self):
        """Return everything, block by block."""
        return {
            "setup": {name: value for name, value in vars(self.setup).items() if not isinstance(value, Path)},
            "peer": self.peer,
            "settings": self.settings,
            "units_per_second": {name: self.units_per_second(name) for name in self.blocks},
            "ratio": self.ratio and dataclasses.asdict(self.ratio),
            "cpu_ratio": self.cpu_ratio and dataclasses.asdict(self.cpu_ratio),
            "losses_agree": self.losses_agree,
            "largest_loss_difference": self.largest_loss_difference,
            "num_rounds": self.num_rounds,
            "stopped_because": self.stopped_because,
            "load": self.load,
            "blocks": {name: dataclasses.asdict(blocks) for name, blocks in self.blocks.items()},
        }


def hold_contest(setup, peer, work, *, settings, max_seconds, min_rounds=MIN_ROUNDS, ends_at=math.inf):
    """Return how our units per second compare with the peer's, each at its setting.

    No round is begun that would end after `ends_at`, by time.monotonic(), but the first; there may then be no interval.
    """
    names, blocks = (OURS, peer), {OURS: Blocks(), peer: Blocks()}
    stopping = Stopping(max_seconds=max_seconds, min_rounds=min_rounds)

    def look(confidence=0.95):
        return _estimate({name: block.seconds for name, block in blocks.items()}, peer, confidence=confidence)

    with groups(setup, names, work) as running:
        for name in names:
            running[name].use(settings[name])
            # Buckets, kernels, memory: not timed.
            running[name].run(Blocks())
        started, num_rounds = time.perf_counter(), 0
        for order in generate_rounds(names, seed=1):
            for name in order:
                running[name].run(blocks[name])
            num_rounds, seconds = num_rounds + 1, time.perf_counter() - started
            reason = f"its time was over after {num_rounds} rounds"
            if time.monotonic() + seconds / num_rounds > ends_at:
                break
            if not stopping.goes_on(num_rounds, seconds=seconds, look=look):
                reason = stopping.reason
                break
    return Found(
        setup=setup, peer=peer, settings=settings, blocks=blocks, ratio=stopping.interval or look(),
        stopped_because=reason, load=os.getloadavg()[1],
    )  # fmt: skip


def _estimate(values, peer, *, confidence=0.95):
    """Return the peer's values / ours with an interval; None of too few rounds."""
    theirs, ours = average_pairs(values[peer]), average_pairs(values[OURS])
    return compute_ratio(theirs, ours, confidence=confidence) if len(ours) >= FEWEST_ROUNDS else None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One target."""

    what: str
    """What was measured, where."""
    target: str
    """What was asked."""
    result: str
    """What came out."""
    is_reached: bool | None
    """Whether it is; None: not shown either way."""

    def row(self):
        """Return the row of a table."""
        words = {True: "reached", False: "missed", None: "no interval"}
        return [self.what, self.target, self.result, words[self.is_reached]]


def judge_contest(result):
    """Return the targets of a contest: speed, equal work, memory."""
    where, peer, ratio = result.setup.name, PEERS[result.peer], result.ratio
    least = _LEAST_RATIOS[result.setup.device][result.peer]
    judged = [
        Judged(
            what=f"{where}: {result.setup.unit}s/s against {peer}", target=f">= {least}x", result=format_ratio(result),
            is_reached=None if ratio is None else result.losses_agree and ratio.low >= least,
        ),
        Judged(
            what=f"{where}: same loss as {peer}", target="within 1e-4", result=f"{result.largest_loss_difference:.1e}",
            is_reached=result.losses_agree,
        ),
    ]  # fmt: skip
    if result.peer == "trainer":
        ours, theirs = (result.blocks[name].peak_memory_bytes / 2**20 for name in (OURS, "trainer"))
        judged.append(
            Judged(
                what=f"{where}: peak memory against (b)",
                target="<= 100 %",
                result=f"{ours / theirs:.0%} ({ours:,.0f} of {theirs:,.0f} MiB)",
                is_reached=ours <= theirs,
            )
        )
    return judged


def format_ratio(result):
    """Return ours / theirs, with the interval if there is one."""
    if result.ratio is None:
        return f"{result.units_per_second(OURS) / result.units_per_second(result.peer):.2f}x"
    return _format_interval(result.ratio)


def _format_interval(interval):
    return f"{interval.value:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def list_contest_rows(results):
    """Return the table of all contests, a row for each of both."""
    rows = []
    for result in results:
        for name, blocks in result.blocks.items():
            is_ours = name == OURS
            rows.append(
                [
                    result.setup.name,
                    "ours" if is_ours else PEERS[name],
                    ", ".join(f"{key} {value}" for key, value in result.settings[name].items()),
                    f"{result.units_per_second(name):,.0f}",
                    "" if is_ours else format_ratio(result),
                    "" if is_ours or result.cpu_ratio is None else _format_interval(result.cpu_ratio),
                    f"{blocks.peak_memory_bytes / 2**20:,.0f}",
                    "" if is_ours else f"{result.largest_loss_difference:.0e}",
                ]
            )
    return rows
