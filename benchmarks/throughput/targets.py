"""What was to be reached, and whether it was: by the lower end of the interval, never by its middle."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.throughput.contest import OURS, Found
from tasks.records.estimate import Estimate

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
class Judged:
    """One target."""

    what: str
    """What was measured, where."""
    target: str
    """What was asked."""
    found: str
    """What came out."""
    is_reached: bool | None
    """Whether it is; None: not shown either way."""

    def row(self) -> list[str]:
        """Return the row of a table."""
        words = {True: "reached", False: "missed", None: "no interval"}
        return [self.what, self.target, self.found, words[self.is_reached]]


def judge_contest(found: Found) -> list[Judged]:
    """Return the targets of a contest: speed, equal work, memory."""
    where, peer, ratio = found.setup.name, PEERS[found.peer], found.ratio
    least = _LEAST_RATIOS[found.setup.device][found.peer]
    judged = [
        Judged(
            what=f"{where}: {found.setup.unit}s/s against {peer}", target=f">= {least}x", found=format_ratio(found),
            is_reached=None if ratio is None else found.losses_agree and ratio.low >= least,
        ),
        Judged(
            what=f"{where}: same loss as {peer}", target="within 1e-4", found=f"{found.largest_loss_difference:.1e}",
            is_reached=found.losses_agree,
        ),
    ]  # fmt: skip
    if found.peer == "trainer":
        ours, theirs = (found.blocks[name].peak_memory_bytes / 2**20 for name in (OURS, "trainer"))
        judged.append(
            Judged(
                what=f"{where}: peak memory against (b)",
                target="<= 100 %",
                found=f"{ours / theirs:.0%} ({ours:,.0f} of {theirs:,.0f} MiB)",
                is_reached=ours <= theirs,
            )
        )
    return judged


def format_ratio(found: Found) -> str:
    """Return ours / theirs, with the interval if there is one."""
    if found.ratio is None:
        return f"{found.units_per_second(OURS) / found.units_per_second(found.peer):.2f}x"
    return _format_interval(found.ratio)


def _format_interval(interval: Estimate) -> str:
    return f"{interval.value:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def list_contest_rows(found: Sequence[Found]) -> list[list[str]]:
    """Return the table of all contests, a row for each of both."""
    rows = []
    for one in found:
        for name, blocks in one.blocks.items():
            is_ours = name == OURS
            rows.append(
                [
                    one.setup.name,
                    "ours" if is_ours else PEERS[name],
                    ", ".join(f"{key} {value}" for key, value in one.settings[name].items()),
                    f"{one.units_per_second(name):,.0f}",
                    "" if is_ours else format_ratio(one),
                    "" if is_ours or one.cpu_ratio is None else _format_interval(one.cpu_ratio),
                    f"{blocks.peak_memory_bytes / 2**20:,.0f}",
                    "" if is_ours else f"{one.largest_loss_difference:.0e}",
                ]
            )
    return rows
