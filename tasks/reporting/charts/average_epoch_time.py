"""Mean seconds of one pass over all ranges, one bar per cell."""

from tasks.process import wording
from tasks.reporting.drawing import Axes, add_hover, is_always_shown, select_color, shorten
from tasks.reporting.results import Results

TITLE = "Average time per epoch"
POSITION = 20
NEEDS_SPEEDUP = False
SECTION = "training"
CAPTION = "Mean training seconds for one pass over all ranges, lower is better."
is_shown = is_always_shown


def describe_chart(results: Results) -> str:
    """Return the mean seconds per epoch of every cell."""
    seconds = ", ".join(f"{cell.cell} {wording.format_seconds(cell.seconds_per_epoch)}" for cell in results.cells)
    epochs = wording.format_plural(results.baseline.num_epochs, "epoch")
    return f"Mean over {epochs}: {seconds}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a bar per cell with its seconds beside it."""
    seconds = [cell.seconds_per_epoch for cell in results.cells]
    places = range(len(seconds))
    bars = axes.barh(places, seconds, 0.62, color=[select_color(number) for number in places])
    axes.bar_label(bars, [wording.format_seconds(value) for value in seconds], padding=4)
    for cell, bar in zip(results.cells, bars, strict=True):
        add_hover(bar, f"{cell.cell}: {wording.format_seconds(cell.seconds_per_epoch)}")
    axes.set_yticks(places, [shorten(cell.cell) for cell in results.cells])
    axes.invert_yaxis()
    axes.set_xlabel("training seconds per epoch, all ranges")
    axes.set_ylabel("cell (name)")
    axes.margins(x=0.18)
    axes.grid(axis="x")
