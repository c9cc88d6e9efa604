"""Measured speedup over the number of ranks, with its interval and the ideal line."""

import math

from tasks.process import wording
from tasks.records.arm_figures import list_interval_ends
from tasks.records.measurement import ArmSpeed
from tasks.reporting.drawing import MUTED, Axes, add_hover, name_points, select_color, shorten
from tasks.reporting.evidence import PairedBlock
from tasks.reporting.results import Results

TITLE = "Measured speedup"
POSITION = 5
NEEDS_SPEEDUP = True
SECTION = "verdict"
CAPTION = (
    "Times as fast as the first cell per unit of work, with 95 % intervals; the dashed line is linear. A dot is one "
    "block beside the baseline's of the same steps; hollow: the machine was not quiet, so it does not count."
)

_MOST_DOTS = 400
_SPREAD = 0.16
"""Share of the largest number of ranks over which the dots of a cell stand beside each other."""


def is_shown(results: Results) -> bool:
    """Return whether a speedup was measured."""
    return results.is_speedup_measured


def describe_chart(results: Results) -> str:
    """Return the speedup of every arm with its interval and its number of ranks."""
    told = ", ".join(
        f"{arm.arm} {wording.format_ratio_with_interval(arm.speedup)} on "
        f"{wording.format_plural(arm.world_size, 'rank')}"
        for arm in _select_arms(results)
    )
    quiet = [block.speedup for block in results.paired_blocks if block.is_quiet]
    blocks = ""
    if quiet:
        blocks = (
            f" {wording.format_plural(len(quiet), 'pair')} of blocks from {wording.format_ratio(min(quiet))} to "
            f"{wording.format_ratio(max(quiet))}."
        )
    return f"{told}.{blocks}"


def draw(results: Results, axes: Axes) -> None:
    """Draw a point with its interval per arm over its number of ranks, the wrapped baseline hollow, and the ideal."""
    arms, base = _select_arms(results), results.baseline.world_size
    most = max([base, *(arm.world_size for arm in arms)])
    axes.plot([0, most * 1.15], [0, most * 1.15 / base], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate("linear", (most, most / base), xytext=(-6, 6), textcoords="offset points", ha="right", color=MUTED)
    axes.plot([base], [1], color=select_color(0), marker="o", markersize=7)
    names = list[tuple[str, float, float]]()
    places = {cell.cell: number for number, cell in enumerate(results.cells)}
    for arm in arms:
        speedup, color = arm.speedup, select_color(places[arm.cell])
        if speedup is None:
            continue
        if not arm.is_wrapped_baseline:
            _draw_blocks(results, axes, arm, color, most)
        errors = [[speedup.value - speedup.low], [speedup.high - speedup.value]]
        # Beside the baseline, not on it: both have as many ranks and nearly the same speed.
        place = arm.world_size + (0.06 * most if arm.is_wrapped_baseline else 0)
        fill, name = ("none", "in a DDP wrapper") if arm.is_wrapped_baseline else (color, shorten(arm.arm))
        line, *_ = axes.errorbar(
            [place], [speedup.value], yerr=errors, color=color, marker="o", markersize=4.5, markerfacecolor=fill,
            capsize=5, elinewidth=1.6, zorder=4,
        )  # fmt: skip
        add_hover(line, f"{arm.arm}: {wording.format_ratio_with_interval(speedup)}")
        names.append((f"{name}  {wording.format_ratio(speedup.value)}", place, speedup.value))
    axes.set_xticks(sorted({base, *(arm.world_size for arm in arms)}))
    axes.set_xlim(0, most * 1.45)
    dots = [block.speedup for block in _select_blocks(results)]
    axes.set_ylim(0, max([most / base, *dots, *list_interval_ends([arm.speedup for arm in arms])]) * 1.2)
    axes.set_xlabel("number of ranks")
    axes.set_ylabel(f"times as fast as {shorten(results.baseline.cell)}")
    axes.grid()
    # To the right and a little below: the line of linear speedup runs above.
    name_points(axes, names, offset=(8, -12))


def _select_blocks(results: Results) -> list[PairedBlock]:
    """Return the blocks to draw: of very many of them some, evenly spread in time."""
    every = math.ceil(len(results.paired_blocks) / _MOST_DOTS) or 1
    return results.paired_blocks[::every]


def _draw_blocks(results: Results, axes: Axes, arm: ArmSpeed, color: str, most: int) -> None:
    """Draw every block of the cell as a dot, from left to right in the order of time."""
    own = [block for block in _select_blocks(results) if block.cell == arm.cell]
    for is_quiet in (True, False):
        places = [
            arm.world_size + _SPREAD * most * ((number + 0.5) / len(own) - 0.5)
            for number, block in enumerate(own)
            if block.is_quiet == is_quiet
        ]
        shown = [block for block in own if block.is_quiet == is_quiet]
        if not shown:
            continue
        (dots,) = axes.plot(
            places, [block.speedup for block in shown], linestyle="none", marker="o", markersize=3.2, color=color,
            markerfacecolor=color if is_quiet else "none", alpha=0.5, markeredgewidth=0.7,
        )  # fmt: skip
        add_hover(
            dots,
            *(
                f"{block.cell}, turn {block.turn} of start {block.launch}: {block.speedup:.3f}x{_tell_others(block)}"
                for block in shown
            ),
        )


def _tell_others(block: PairedBlock) -> str:
    others = "" if block.others_share is None else f"; others used {wording.format_small_percent(block.others_share)}"
    return f"{others}{'' if block.is_quiet else ', not quiet'}"


def _select_arms(results: Results) -> list[ArmSpeed]:
    """Return every arm but the baseline as it is."""
    arms = [] if results.measurement is None else results.measurement.arms
    return [arm for arm in arms if arm.is_wrapped_baseline or arm.cell != results.baseline.cell]
