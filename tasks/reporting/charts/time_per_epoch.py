"""Seconds of each epoch of each range, cell beside cell."""

from tasks.process import wording
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
    parts, names = [], _name_segments(results)
    for cell in results.cells:
        seconds = [
            f"{name} {wording.format_seconds(part.train_seconds)}"
            for name, part in zip(names, cell.segments, strict=True)
        ]
        shown = seconds if len(seconds) <= 6 else [seconds[0], seconds[-1]]
        parts.append(f"{cell.cell}: {', '.join(shown)}")
    return f"{'; '.join(parts)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a group of bars per segment, or lines if there are too many segments for bars."""
    names, num_cells = _name_segments(results), len(results.cells)
    num_groups = len(names)
    width = 0.8 / num_cells
    for number, cell in enumerate(results.cells):
        seconds = [part.train_seconds for part in cell.segments]
        style = {"color": select_color(number), "label": shorten(cell.cell)}
        if num_cells * num_groups > _MOST_BARS:
            axes.plot(range(num_groups), seconds, linestyle=select_dashes(number), **style)
            continue
        places = [group + (number - (num_cells - 1) / 2) * width for group in range(num_groups)]
        bars = axes.bar(places, seconds, width * 0.92, **style)
        for name, value, bar in zip(names, seconds, bars, strict=True):
            add_hover(bar, f"{cell.cell}, {name}: {wording.format_seconds(value)}")
        if num_cells * num_groups <= _MOST_NUMBERS:
            axes.bar_label(bars, [wording.format_three_digits(value) for value in seconds], padding=2, fontsize=9)
    step = max(1, num_groups // 6)
    axes.set_xticks(range(0, num_groups, step), names[::step])
    axes.set_xlabel("range (rows of the data set)" + (", epoch" if results.baseline.num_epochs > 1 else ""))
    axes.set_ylabel("training seconds")
    axes.set_ylim(0, 1.15 * max(part.train_seconds for cell in results.cells for part in cell.segments))
    axes.grid(axis="y")
    add_legend(axes)


def _name_segments(results: Results) -> list[str]:
    baseline = results.baseline
    return [f"{part.range}, {part.epoch}" if baseline.num_epochs > 1 else str(part.range) for part in baseline.segments]
