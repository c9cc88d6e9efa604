"""Share of linear speedup that each cell reached."""

from tasks.process import wording
from tasks.reporting.cell_results import CellResults
from tasks.reporting.drawing import INK, MUTED, Axes, add_hover, is_always_shown, select_color, shorten
from tasks.reporting.results import Results

TITLE = "Parallel efficiency"
POSITION = 6
NEEDS_SPEEDUP = True
SECTION = "training"
CAPTION = "Share of linear speedup that was reached, 100 % is linear; a thin bar is the 95 % interval."
is_shown = is_always_shown


def describe_chart(results: Results) -> str:
    """Return the parallel efficiency of every cell."""
    texts = [f"{cell.cell} {_format(cell)}" for cell in results.cells]
    return f"{', '.join(texts)}."


def _format(cell: CellResults) -> str:
    return wording.format_percent(_find_share(cell))


def _find_share(cell: CellResults) -> float | None:
    """Return 1 of the baseline, which is what linear is counted from."""
    return cell.speedup.parallel_efficiency.value if cell.speedup else 1.0 if cell.is_baseline else None


def draw(results: Results, axes: Axes) -> None:
    """Draw a bar per cell in percent, and the line of 100 %."""
    shares = [100 * (_find_share(cell) or 0) for cell in results.cells]
    places = range(len(shares))
    bars = axes.bar(places, shares, 0.55, color=[select_color(number) for number in places])
    for cell, bar in zip(results.cells, bars, strict=True):
        measured = cell.speedup.parallel_efficiency if cell.speedup else None
        add_hover(bar, f"{cell.cell}: {wording.format_percent_with_interval(measured) if measured else _format(cell)}")
    tops = list(shares)
    for place, cell in enumerate(results.cells):
        if cell.speedup is not None:
            measured = cell.speedup.parallel_efficiency
            axes.plot([place] * 2, [100 * measured.low, 100 * measured.high], color=INK, linewidth=1.4)
            tops[place] = max(tops[place], 100 * measured.high)
        axes.annotate(_format(cell), (place, tops[place]), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.axhline(100, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    is_crowded = len(shares) > 5
    axes.set_xticks(places, [shorten(cell.cell) for cell in results.cells], rotation=40 if is_crowded else 0)
    axes.set_xlabel("cell")
    axes.set_ylabel("percent of linear speedup")
    axes.set_xlim(-0.7, len(shares) - 0.3)
    axes.set_ylim(0, max([100, *tops]) * 1.18)
    axes.grid(axis="y")
