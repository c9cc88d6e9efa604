"""Speedup of each cell, a bar with its interval, and where linear would be."""

from tasks.process import wording
from tasks.reporting.drawing import INK, MUTED, Axes, add_hover, is_always_shown, select_color, set_height, shorten
from tasks.reporting.results import Results

TITLE = "Speedup"
POSITION = 5
NEEDS_SPEEDUP = True
SECTION = "verdict"
CAPTION = "Speedup over the first cell. A dashed mark is linear, a thin bar the 95 % interval."
is_shown = is_always_shown


def describe_chart(results: Results) -> str:
    """Return the speedup of every cell with its number of ranks, and its interval where it was measured."""
    texts = (
        f"{cell.cell} {wording.format_ratio_with_interval(cell.speedup)} on "
        f"{wording.format_plural(cell.world_size, 'rank')}"
        for cell in results.cells[1:]
    )
    return f"{', '.join(texts)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a bar per cell with its ends and the mark of linear."""
    names: list[str] = []
    for number, cell in enumerate(results.cells):
        if (speedup := cell.speedup) is None:
            continue
        place, linear = len(names), cell.world_size / results.baseline.world_size
        (drawn,) = axes.barh([place], [speedup.value], 0.55, color=select_color(number))
        add_hover(drawn, f"{cell.cell}: {wording.format_ratio_with_interval(speedup)}")
        axes.plot([speedup.low, speedup.high], [place] * 2, color=INK, linewidth=1.4)
        axes.plot([linear] * 2, [place - 0.4, place + 0.4], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        names.append(f"{shorten(cell.cell)}  {wording.format_ratio(speedup.value)}")
    set_height(axes, 1.2 + 0.4 * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"times as fast as {shorten(results.baseline.cell)}")
    axes.grid(axis="x")
