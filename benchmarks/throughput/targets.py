"""What was to be reached, and whether it was: by the lower end of the interval, never by its middle."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.throughput.contest import OURS, Found
from benchmarks.throughput.spreading import Spread
from benchmarks.throughput.waiting import Waited
from tasks.records.estimate import Estimate

PEERS = {
    "published": "(a) loop as published",
    "trainer": "(b) transformers.Trainer",
    "accelerated": "(c) accelerate loop",
}
LEAST_RATIOS = {"published": 2.5, "trainer": 1.1, "accelerated": 1.1}
LEAST_SHARE = 0.95
MOST_DATA_WAIT = 0.02
MOST_START_SECONDS = 6.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One target."""

    what: str
    """What was measured, where."""
    target: str
    """What was asked."""
    found: str
    """What came out."""
    is_reached: bool | None
    """Whether it is; None: not measured."""

    def row(self) -> list[str]:
        """Return the row of a table."""
        words = {True: "reached", False: "missed", None: "not measured"}
        return [self.what, self.target, self.found, words[self.is_reached]]


def shown(interval: Estimate, *, percent: bool = False) -> str:
    """Return value and interval in figures."""
    if percent:
        return f"{interval.value:.1%} ({interval.low:.1%} to {interval.high:.1%})"
    return f"{interval.value:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def judge_contest(found: Found) -> list[Judged]:
    """Return the targets of a contest: speed, equal work, memory."""
    name = found.setup.name
    judged = [
        Judged(
            what=f"{name}: {found.setup.unit}s/s against {PEERS[peer]}",
            target=f">= {LEAST_RATIOS[peer]}x",
            found=shown(ratio),
            is_reached=found.losses_agree and ratio.low >= LEAST_RATIOS[peer],
        )
        for peer, ratio in found.ratios.items()
    ]
    worst = max(found.largest_loss_difference.values())
    judged.append(
        Judged(what=f"{name}: same loss", target="within 1e-4", found=f"{worst:.1e}", is_reached=found.losses_agree)
    )
    if "trainer" in found.blocks:
        ours, theirs = (found.blocks[peer].peak_memory_bytes / 2**20 for peer in (OURS, "trainer"))
        judged.append(
            Judged(
                what=f"{name}: peak memory against (b)",
                target="<= 100 %",
                found=f"{ours / theirs:.0%} ({ours:,.0f} of {theirs:,.0f} MiB)",
                is_reached=ours <= theirs,
            )
        )
    return judged


def judge_spread(name: str, spread: Spread) -> list[Judged]:
    """Return the targets of two processes against one."""
    return [
        Judged(
            what=f"{name}: 2 processes, share of the speedup of 2 independent copies",
            target=">= 95 %",
            found=f"{shown(spread.share, percent=True)}; speedup {shown(spread.speedup)}, copies "
            f"{shown(spread.ceiling)}, {spread.accumulation} micro-batches per rank",
            is_reached=spread.share.low >= LEAST_SHARE,
        ),
    ]


def judge_start(seconds: float) -> Judged:
    """Return the target of a start."""
    return Judged(
        what="training child to its first step, beyond importing torch",
        target="<= 6 s",
        found=f"{seconds:.1f} s",
        is_reached=seconds <= MOST_START_SECONDS,
    )


def judge_wait(name: str, waited: Waited) -> Judged:
    """Return the target of the wait for data."""
    return Judged(
        what=f"{name}: wait for data in a training of {waited.num_steps} steps",
        target="<= 2 %",
        found=f"{waited.share:.2%}",
        is_reached=waited.share <= MOST_DATA_WAIT,
    )


def contest_rows(found: Sequence[Found]) -> list[list[str]]:
    """Return the table of all contests, a row for each peer."""
    rows = []
    for one in found:
        for peer in one.blocks:
            is_ours = peer == OURS
            rows.append(
                [
                    one.setup.name,
                    "ours" if is_ours else PEERS[peer],
                    ", ".join(f"{key} {value}" for key, value in one.settings[peer].items()),
                    f"{one.units_per_second(peer):,.0f}",
                    "" if is_ours else shown(one.ratios[peer]),
                    "" if is_ours else shown(one.cpu_ratios[peer]),
                    f"{one.blocks[peer].peak_memory_bytes / 2**20:,.0f}",
                    f"{one.largest_loss_difference[peer]:.0e}",
                ]
            )
    return rows
