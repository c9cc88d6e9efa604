"""From the ideal step of each cell to the measured one: what is lost on the way."""

from dataclasses import dataclass

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.records.measurement import Waterfall
from tasks.reporting.drawing import INK, MUTED, Axes, add_hover, select_color, set_height, shorten
from tasks.reporting.results import Results

TITLE = "Where the step goes"
POSITION = 60
NEEDS_SPEEDUP = False
SECTION = "losses"
CAPTION = (
    "From the step that would be linear to the measured one: each bar begins where the one above ends, and a thin "
    "line is its 95 % interval. Hatched: what the parts do not explain."
)

_COLORS = {"data wait": 4, "host-to-device copy": 4, "contention": 3, "straggler": 3, "DDP overhead": 1}
_COLORS |= {"exposed communication": 1, "optimizer": 2, "fixed": 2, "waiting for other stages": 1}
"""Part -> colour of the palette: what belongs together looks alike; the labels tell the parts apart."""
_INCHES_PER_ROW, _INCHES_AROUND = 0.25, 0.95


@dataclass(frozen=True)
class _Row:
    name: str
    seconds: float
    interval: Estimate | None = None
    """Of the seconds, where they were measured by themselves."""
    is_whole: bool = False
    """Whether its bar begins at 0, and not where the one above ends."""


def is_shown(results: Results) -> bool:
    """Return whether the step of a cell was taken apart."""
    return results.measurement is not None and bool(results.measurement.waterfalls)


def describe_chart(results: Results) -> str:
    """Return the seconds of every part, from the ideal step to the measured one."""
    assert results.measurement is not None
    return " ".join(_describe_waterfall(waterfall) for waterfall in results.measurement.waterfalls)


def _describe_waterfall(waterfall: Waterfall) -> str:
    parts = (
        ", ".join(f"{part.name} {wording.format_duration(part.seconds.value)}" for part in waterfall.parts)
        or "no parts"
    )
    measured = wording.format_duration(waterfall.measured_seconds)
    return (
        f"{waterfall.cell}: from the ideal step of {wording.format_duration(waterfall.ideal_seconds)} to the measured "
        f"{measured}: {parts}, unexplained {wording.format_duration(waterfall.unexplained_seconds)}."
    )


def draw(results: Results, axes: Axes) -> None:
    """Draw a row per part, each beginning where the one above ends, with its interval; the cells below each other."""
    assert results.measurement is not None
    waterfalls = results.measurement.waterfalls
    factor, unit = (1000, "ms") if max(item.measured_seconds for item in waterfalls) < 1 else (1, "s")
    names: list[str] = []
    for waterfall in waterfalls:
        if len(waterfalls) > 1:
            axes.text(0, len(names), shorten(waterfall.cell), va="center", fontweight="bold")
            names.append("")
        start = 0.0
        for row in _list_rows(waterfall):
            begin = 0.0 if row.is_whole else start
            _draw_row(axes, len(names), row, begin, factor)
            start = begin + row.seconds
            names.append(row.name)
    set_height(axes, _INCHES_AROUND + _INCHES_PER_ROW * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(f"{unit} per optimizer step")
    axes.set_ylabel("part of the step")
    axes.margins(x=0.16)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0] if _goes_below_zero(waterfalls) else 0.0))
    axes.grid(axis="x")


def _draw_row(axes: Axes, place: int, row: _Row, begin: float, factor: float) -> None:
    """Draw one bar with its 95 % interval, and its figure at the right end of both."""
    left, length = factor * begin, factor * row.seconds
    end = max(left, left + length)
    if row.name == "unexplained":
        bars = axes.barh(place, length, 0.7, left=left, facecolor="none", edgecolor=MUTED, hatch="////")
    else:
        color = select_color(0 if row.is_whole else _COLORS.get(row.name, 3))
        bars = axes.barh(place, length, 0.7, left=left, color=color)
    interval = row.interval
    text = wording.format_duration_with_interval(interval) if interval else wording.format_duration(row.seconds)
    add_hover(bars[0], f"{row.name}: {text}")
    if row.interval is not None:
        ends = [factor * (begin + seconds) for seconds in (row.interval.low, row.interval.high)]
        axes.plot(ends, [place, place], color=INK, linewidth=1, marker="|", markersize=5)
        end = max(end, *ends)
    shown = wording.format_three_digits(length)
    axes.annotate(shown, (end, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9, color=INK)


def _list_rows(waterfall: Waterfall) -> list[_Row]:
    """Return what a bar is drawn of, from top to bottom."""
    rows = [_Row("ideal", waterfall.ideal_seconds, is_whole=True)]
    rows += [_Row(part.name, part.seconds.value, part.seconds) for part in waterfall.parts]
    rows.append(_Row("unexplained", waterfall.unexplained_seconds))
    return [*rows, _Row("measured", waterfall.measured_seconds, is_whole=True)]


def _goes_below_zero(waterfalls: list[Waterfall]) -> bool:
    """Return whether a bar or its interval reaches below 0, as small parts without the ideal step before them do."""
    for waterfall in waterfalls:
        start = 0.0
        for row in _list_rows(waterfall):
            begin = 0.0 if row.is_whole else start
            if begin + min(row.seconds, row.interval.low if row.interval else 0.0) < 0:
                return True
            start = begin + row.seconds
    return False
