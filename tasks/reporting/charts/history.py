"""Step time of every cell in the last comparisons of the same work, against the first that is shown."""

import math

import numpy as np

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.reporting.drawing import MUTED, Axes, add_hover_points, add_legend, select_color, select_dashes, shorten
from tasks.reporting.results import Results

TITLE = "Step time over the last comparisons"
POSITION = 90
NEEDS_SPEEDUP = False
SECTION = "history"
CAPTION = (
    "Seconds per step in each comparison / those in the first one shown, with the interval of each session; lower is "
    "better."
)

_MOST_NAMED = 8
_MOST_DATES = 4


def is_shown(results: Results) -> bool:
    """Return whether at least one cell was measured twice."""
    return any(len(points) > 1 for points in _list_step_times(results).values())


def describe_chart(results: Results) -> str:
    """Return the first and the last step time of every cell."""
    texts = [
        f"{cell} {wording.format_duration(points[0][1].value)} at first, "
        f"{wording.format_duration(points[-1][1].value)} now"
        for cell, points in _list_step_times(results).items()
        if len(points) > 1
    ]
    more = f"; and {len(texts) - _MOST_NAMED} more cells" if len(texts) > _MOST_NAMED else ""
    return f"{'; '.join(texts[:_MOST_NAMED])}{more}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a line with intervals per cell over the comparisons, and 1 as the first of them."""
    records = [] if results.history is None else results.history.records
    dates = list({record.comparison: record.finished_at for record in records}.values())
    axes.axhline(1, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    for number, (cell, points) in enumerate(_list_step_times(results).items()):
        first = points[0][1].value if points else 1.0
        places = [place + 0.06 * number for place, _ in points]
        values = [step.value / first for _, step in points]
        errors = [[abs(end - step.value) / first for end in (step.low, step.high)] for _, step in points]
        axes.errorbar(
            places, values, yerr=np.reshape(errors, (-1, 2)).T, color=select_color(number),
            linestyle=select_dashes(number), marker="o", markersize=4.5, capsize=3, elinewidth=1.2, label=shorten(cell),
        )  # fmt: skip
        texts = [
            f"{cell}, {dates[place]}: {wording.format_duration_with_interval(step)} per step" for place, step in points
        ]
        add_hover_points(axes, places, values, texts)
    step = math.ceil(len(dates) / _MOST_DATES)
    axes.set_xticks(range(0, len(dates), step), [date[:10] for date in dates[::step]])
    axes.set_xlabel("comparison finished on")
    axes.set_ylabel("times the first step time")
    axes.grid(axis="y")
    add_legend(axes)


def _list_step_times(results: Results) -> dict[str, list[tuple[int, Estimate]]]:
    """Return for every cell (number of the comparison, step time), as far as it was measured."""
    records = [] if results.history is None else results.history.records
    places = {key: number for number, key in enumerate(dict.fromkeys(record.comparison for record in records))}
    result: dict[str, list[tuple[int, Estimate]]] = {cell.cell: [] for cell in results.cells}
    for record in records:
        if record.cell in result and record.step_time is not None:
            result[record.cell].append((places[record.comparison], record.step_time))
    return result
