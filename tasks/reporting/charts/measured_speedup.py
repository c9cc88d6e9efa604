"""Measured speedup over the number of ranks, with its interval and the ideal line."""

from tasks.gates.measured import list_interval_ends
from tasks.process import wording
from tasks.records.measurement import ArmSpeed
from tasks.reporting.drawing import MUTED, Axes, select_color, shorten
from tasks.reporting.results import Results

TITLE = "Measured speedup"
POSITION = 5
NEEDS_SPEEDUP = True
SECTION = "verdict"


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
    return (
        f"Times as fast as {results.baseline.cell} per unit of work, with 95 % intervals; the dashed line is linear: "
        f"{told}."
    )


def draw(results: Results, axes: Axes) -> None:
    """Draw a point with its interval per arm over its number of ranks, the wrapped baseline hollow, and the ideal."""
    arms, base = _select_arms(results), results.baseline.world_size
    most = max([base, *(arm.world_size for arm in arms)])
    axes.plot([0, most * 1.15], [0, most * 1.15 / base], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate("linear", (most, most / base), xytext=(-6, 6), textcoords="offset points", ha="right", color=MUTED)
    axes.plot([base], [1], color=select_color(0), marker="o", markersize=7)
    places = {cell.cell: number for number, cell in enumerate(results.cells)}
    for arm in arms:
        speedup, color = arm.speedup, select_color(places[arm.cell])
        if speedup is None:
            continue
        errors = [[speedup.value - speedup.low], [speedup.high - speedup.value]]
        # Beside the baseline, not on it: both have as many ranks and nearly the same speed.
        place = arm.world_size + (0.06 * most if arm.is_wrapped_baseline else 0)
        fill, name = ("none", "in a DDP wrapper") if arm.is_wrapped_baseline else (color, shorten(arm.arm))
        axes.errorbar(
            [place], [speedup.value], yerr=errors, color=color, marker="o", markersize=4.5, markerfacecolor=fill,
            capsize=5, elinewidth=1.6,
        )  # fmt: skip
        label = f"{name}  {wording.format_ratio(speedup.value)}"
        # To the right and a little below: the line of linear speedup runs above.
        axes.annotate(
            label, (place, speedup.value), xytext=(8, -12), textcoords="offset points", ha="left", fontsize=9.5
        )
    axes.set_xticks(sorted({base, *(arm.world_size for arm in arms)}))
    axes.set_xlim(0, most * 1.45)
    axes.set_ylim(0, max([most / base, *list_interval_ends([arm.speedup for arm in arms])]) * 1.2)
    axes.set_xlabel("number of ranks")
    axes.set_ylabel(f"times as fast as {shorten(results.baseline.cell)}")
    axes.grid()


def _select_arms(results: Results) -> list[ArmSpeed]:
    """Return every arm but the baseline as it is."""
    arms = [] if results.measurement is None else results.measurement.arms
    return [arm for arm in arms if arm.is_wrapped_baseline or arm.cell != results.baseline.cell]
