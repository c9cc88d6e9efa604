"""Speedup of each cell, a bar with its interval, and where linear would be."""

from typing import NamedTuple

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.reporting.drawing import INK, MUTED, Axes, add_hover, is_always_shown, select_color, set_height, shorten
from tasks.reporting.results import Results

TITLE = "Speedup"
POSITION = 5
NEEDS_SPEEDUP = True
SECTION = "verdict"
CAPTION = "Times as fast as the first cell per unit of work; a dashed mark is linear. A thin bar is the 95 % interval."
is_shown = is_always_shown


class _Bar(NamedTuple):
    cell: str
    name: str
    world_size: int
    speedup: Estimate | None
    text: str


def describe_chart(results: Results) -> str:
    """Return the speedup of every cell with its number of ranks, and its interval where it was measured."""
    texts = (f"{bar.name} {bar.text} on {wording.format_plural(bar.world_size, 'rank')}" for bar in _list_bars(results))
    return f"{', '.join(texts)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a bar per cell with its ends and the mark of linear, that of the wrapped baseline pale."""
    numbers = {cell.cell: number for number, cell in enumerate(results.cells)}
    names: list[str] = []
    for bar in _list_bars(results):
        if (speedup := bar.speedup) is None:
            continue
        place, color, linear = len(names), select_color(numbers[bar.cell]), bar.world_size / results.baseline.world_size
        (drawn,) = axes.barh([place], [speedup.value], 0.55, color=color, alpha=1 if bar.name == bar.cell else 0.4)
        add_hover(drawn, f"{bar.name}: {bar.text}")
        axes.plot([speedup.low, speedup.high], [place] * 2, color=INK, linewidth=1.4)
        axes.plot([linear] * 2, [place - 0.4, place + 0.4], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        names.append(f"{shorten(bar.name)}  {wording.format_ratio(speedup.value)}")
    set_height(axes, 1.2 + 0.4 * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"times as fast as {shorten(results.baseline.cell)}")
    axes.set_ylabel("cell (name)")
    axes.grid(axis="x")


def _list_bars(results: Results) -> list[_Bar]:
    """Return every arm but the baseline as it is."""
    return [
        _Bar(
            arm.cell,
            "in a DDP wrapper" if arm.is_wrapped_baseline else arm.cell,
            arm.world_size,
            arm.speedup,
            wording.format_ratio_with_interval(arm.speedup),
        )
        for arm in (results.measurement.arms if results.measurement else ())
        if arm.is_wrapped_baseline or arm.cell != results.baseline.cell
    ]
