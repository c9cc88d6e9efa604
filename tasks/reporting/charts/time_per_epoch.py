"""Seconds of each epoch of each range, cell beside cell."""

from tasks.process import wording
from tasks.reporting.cell_results import Figures
from tasks.reporting.drawing import Axes, add_hover, add_legend, is_always_shown, select_color, select_dashes, shorten
from tasks.reporting.results import Results

TITLE = "Time per epoch of each range"
POSITION = 10
NEEDS_SPEEDUP = False
SECTION = "training"
CAPTION = "Training seconds of each part of the training, lower is better."
is_shown = is_always_shown

_MOST_BARS = 24
_MOST_NUMBERS = 12


def describe_chart(results: Results) -> str:
    """Return the seconds of every segment, or of the first and the last if there are many."""
    parts = []
    for cell in results.cells:
        shown = cell.segments if len(cell.segments) <= 6 else [cell.segments[0], cell.segments[-1]]
        seconds = ", ".join(
            f"{_name_segment(part, results)} {wording.format_seconds(part.train_seconds)}" for part in shown
        )
        parts.append(f"{cell.cell}: {seconds}")
    return f"{'; '.join(parts)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a group of bars per segment, or lines if there are too many segments for bars."""
    num_cells, num_groups = len(results.cells), len(results.baseline.segments)
    is_bars = num_cells * num_groups <= _MOST_BARS
    for number, cell in enumerate(results.cells):
        seconds = [part.train_seconds for part in cell.segments]
        color = select_color(number)
        if is_bars:
            width = 0.8 / num_cells
            places = [group + (number - (num_cells - 1) / 2) * width for group in range(len(seconds))]
            bars = axes.bar(places, seconds, width * 0.92, color=color, label=shorten(cell.cell))
            for part, bar in zip(cell.segments, bars, strict=True):
                text = f"{cell.cell}, {_name_segment(part, results)}: {wording.format_seconds(part.train_seconds)}"
                add_hover(bar, text)
            if num_cells * num_groups <= _MOST_NUMBERS:
                axes.bar_label(bars, [wording.format_three_digits(value) for value in seconds], padding=2, fontsize=9)
        else:
            places = list(range(len(seconds)))
            axes.plot(places, seconds, color=color, linestyle=select_dashes(number), label=shorten(cell.cell))
    step = max(1, num_groups // 6)
    names = [_name_segment(part, results) for part in results.baseline.segments]
    axes.set_xticks(range(0, num_groups, step), names[::step])
    axes.set_xlabel("range (rows of the data set)" + (", epoch" if results.baseline.num_epochs > 1 else ""))
    axes.set_ylabel("training seconds")
    axes.set_ylim(0, 1.15 * max(part.train_seconds for cell in results.cells for part in cell.segments))
    axes.grid(axis="y")
    add_legend(axes)


def _name_segment(part: Figures, results: Results) -> str:
    return str(part.range) if results.baseline.num_epochs == 1 else f"{part.range}, {part.epoch}"
