"""Peers against each other: the best setting of each, then blocks in turns until the intervals are narrow."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.rounds import MIN_ROUNDS, Stopping, average_blocks, compute_ratio, generate_rounds
from benchmarks.throughput.groups import Blocks, Setup, groups
from benchmarks.throughput.trying import best_of, settings_of, tried_settings, use_what_fits, worth_trying
from tasks.records.estimate import Estimate

OURS = "ours"
LOSS_TOLERANCE = 1e-4
"""Largest relative difference of a block's loss from ours, in fp32: the same rows, other orders of summing."""
_LOSS_TOLERANCES = {"fp32": LOSS_TOLERANCE, "bf16": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finished contest."""

    setup: Setup
    """What was compared."""
    settings: dict[str, dict[str, Any]]
    """The setting of every peer."""
    too_large: dict[str, dict[str, Any]]
    """The best setting of peers for which memory beside the others was too small, so that they took a smaller one."""
    tried: dict[str, list[dict[str, Any]]]
    """Every peer's settings with the seconds of each block that they took when tried."""
    blocks: dict[str, Blocks]
    """Of every peer."""
    ratios: dict[str, Estimate]
    """Units per second of ours / of the peer."""
    cpu_ratios: dict[str, Estimate]
    """CPU seconds of the peer / of ours, which other load hardly changes; without the wait for other ranks."""
    largest_loss_difference: dict[str, float]
    """Of any block from ours, relative."""
    num_rounds: int
    """Rounds of two blocks of each."""
    stopped_because: str
    """In words."""
    load: float
    """Load average of five minutes when it ended, its own processes included."""

    @property
    def losses_agree(self) -> bool:
        """Whether all peers did the same work, by their losses."""
        allowed = _LOSS_TOLERANCES[self.setup.precision]
        return all(value <= allowed for value in self.largest_loss_difference.values())

    def units_per_second(self, peer: str) -> float:
        """Return the real tokens, or the images, of the peer's blocks / their seconds."""
        return sum(self.blocks[peer].num_units) / sum(self.blocks[peer].seconds)

    def as_json(self) -> dict[str, Any]:
        """Return everything, round by round."""
        return {
            "setup": {name: value for name, value in vars(self.setup).items() if not isinstance(value, Path)},
            "settings": self.settings,
            "too_large": self.too_large,
            "tried": self.tried,
            "units_per_second": {peer: self.units_per_second(peer) for peer in self.blocks},
            "ratios": {peer: dataclasses.asdict(ratio) for peer, ratio in self.ratios.items()},
            "cpu_ratios": {peer: dataclasses.asdict(ratio) for peer, ratio in self.cpu_ratios.items()},
            "losses_agree": self.losses_agree,
            "largest_loss_difference": self.largest_loss_difference,
            "num_rounds": self.num_rounds,
            "stopped_because": self.stopped_because,
            "load": self.load,
            "blocks": {peer: dataclasses.asdict(blocks) for peer, blocks in self.blocks.items()},
        }


def contest(
    setup: Setup,
    peers: Sequence[str],
    work: Path,
    *,
    max_seconds: float,
    half_width: float,
    say: Callable[[str], None],
    min_rounds: int = MIN_ROUNDS,
    is_trying: bool = True,
    tried_on_one: Mapping[str, list[dict[str, Any]]] | None = None,
) -> Found:
    """Return how our units per second compare with the peers'.

    Each peer takes the best of its settings or, without trying, the first. `tried_on_one`: what was tried on one
    process, for a contest on several.
    """
    tried: dict[str, list[dict[str, Any]]] = {}
    chosen: dict[str, dict[str, Any]] = {}
    best: dict[str, dict[str, Any]] = {}
    for peer in peers:
        offered = settings_of(setup, peer, work / "trying")
        chosen[peer] = offered[0]
        if is_trying:
            if tried_on_one is not None:
                offered = worth_trying(offered, tried_on_one[peer])
            tried[peer] = tried_settings(setup, peer, work / "trying", settings=offered, say=say)
            chosen[peer] = best_of(tried[peer])
    blocks = {peer: Blocks() for peer in peers}
    values: dict[str, list[float]] = {peer: [] for peer in peers}
    cpu_values: dict[str, list[float]] = {peer: [] for peer in peers}
    stopping = Stopping(target_half_width=half_width, max_seconds=max_seconds, min_rounds=min_rounds)

    with groups(setup, peers, work / "running") as running:
        for peer in peers:
            best[peer] = chosen[peer]
            chosen[peer] = use_what_fits(running[peer], best[peer], tried.get(peer, []), say=say)
        started, num_rounds, order = time.perf_counter(), 0, generate_rounds(peers, seed=1)
        look = partial(against_ours, values)
        while True:
            names = next(order)
            seconds = [running[name].run(blocks[name]) for name in names]
            for peer, value in average_blocks(names, seconds).items():
                values[peer].append(value)
                cpu_values[peer].append(sum(blocks[peer].cpu_seconds[-2:]))
            num_rounds += 1
            if not stopping.goes_on(num_rounds, seconds=time.perf_counter() - started, look=look):
                break
            if num_rounds % 5 == 0:
                say(f"{setup.name}: {num_rounds} rounds, {statistics.median(values[OURS]):.2f} s per block of ours")
    return Found(
        setup=setup,
        settings=chosen,
        too_large={peer: setting for peer, setting in best.items() if setting != chosen[peer]},
        tried=tried,
        blocks=blocks,
        ratios=dict(stopping.intervals),
        cpu_ratios=against_ours(cpu_values),
        largest_loss_difference={peer: largest_difference(blocks[peer], blocks[OURS]) for peer in peers},
        num_rounds=num_rounds,
        stopped_because=stopping.reason,
        load=os.getloadavg()[1],
    )


def against_ours(values: Mapping[str, list[float]], confidence: float = 0.95) -> dict[str, Estimate]:
    """Return each peer's seconds / ours, from one value per round."""
    return {
        peer: compute_ratio(found, values[OURS], confidence=confidence)
        for peer, found in values.items()
        if peer != OURS
    }


def largest_difference(blocks: Blocks, others: Blocks) -> float:
    """Return the largest relative difference of a block's loss from that of the same block."""
    return max(abs(one / other - 1) for one, other in zip(blocks.losses, others.losses, strict=True))
