"""Speedup over the number of ranks, with the ideal line."""

from tasks.process import wording
from tasks.reporting.drawing import MUTED, Axes, name_points, select_color, shorten
from tasks.reporting.results import Results

TITLE = "Speedup of the whole training"
POSITION = 30
NEEDS_SPEEDUP = True
SECTION = "verdict"
CAPTION = (
    "Times as fast as the first cell at equal work; the dashed line is linear. A thin bar spans the lowest and the "
    "highest speedup of a single segment; it is no interval."
)


def is_shown(results: Results) -> bool:
    """Return whether it is the only speedup that there is."""
    return not results.is_speedup_measured


def describe_chart(results: Results) -> str:
    """Return the speedup of every cell with its number of ranks."""
    told = ", ".join(
        f"{cell.cell} {wording.format_ratio(cell.whole.speedup)} on {wording.format_plural(cell.world_size, 'rank')}"
        for cell in results.cells
    )
    return f"{told}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a point per cell over its number of ranks, and the line of linear speedup."""
    most = max(cell.world_size for cell in results.cells)
    base = results.baseline.world_size
    axes.plot([0, most * 1.15], [0, most * 1.15 / base], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate("linear", (most, most / base), xytext=(-6, 6), textcoords="offset points", ha="right", color=MUTED)
    names = list[tuple[str, float, float]]()
    for number, cell in enumerate(results.cells):
        ratio, spread = cell.whole.speedup, cell.speedup_of_segments
        if ratio is None:
            continue
        color = select_color(number)
        if spread is not None:
            axes.plot([cell.world_size] * 2, [spread.lowest, spread.highest], color=color, linewidth=2, alpha=0.6)
        axes.plot([cell.world_size], [ratio], color=color, marker="o", markersize=9)
        names.append((f"{shorten(cell.cell)}  {wording.format_ratio(ratio)}", cell.world_size, ratio))
    ticks = sorted({cell.world_size for cell in results.cells})
    axes.set_xticks(ticks)
    axes.set_xlim(0, most * 1.45)
    axes.set_ylim(0, max([most / base, *(cell.whole.speedup or 0 for cell in results.cells)]) * 1.2)
    axes.set_xlabel("number of ranks")
    axes.set_ylabel(f"times as fast as {shorten(results.baseline.cell)}")
    axes.grid()
    # To the right and a little below: the line of linear speedup runs above.
    name_points(axes, names, offset=(10, -11))
