"""From the ideal step of each cell to the measured one: what is lost on the way."""

from typing import Any

from tasks.process import wording
from tasks.records.estimate import Estimate
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

_COLORS = {
    "ideal": 0, "measured": 0, "data wait": 4, "host-to-device copy": 4, "contention": 3, "straggler": 3,
    "DDP overhead": 1, "exposed communication": 1, "optimizer": 2, "fixed": 2, "waiting for other stages": 1,
}  # fmt: skip
"""Part -> colour of the palette: what belongs together looks alike; the labels tell the parts apart."""
_INCHES_PER_ROW, _INCHES_AROUND = 0.25, 0.95


def is_shown(results: Results) -> bool:
    """Return whether the step of a cell was taken apart."""
    return results.measurement is not None and bool(results.measurement.waterfalls)


def describe_chart(results: Results) -> str:
    """Return the seconds of every part, from the ideal step to the measured one."""
    assert results.measurement is not None
    texts, show = [], wording.format_duration
    for item in results.measurement.waterfalls:
        parts = ", ".join(f"{part.name} {show(part.seconds.value)}" for part in item.parts) or "no parts"
        texts.append(
            f"{item.cell}: from the ideal step of {show(item.ideal_seconds)} to the measured "
            f"{show(item.measured_seconds)}: {parts}, unexplained {show(item.unexplained_seconds)}."
        )
    return " ".join(texts)


def draw(results: Results, axes: Axes) -> None:
    """Draw a row per part, each beginning where the one above ends, with its interval; the cells below each other."""
    assert results.measurement is not None
    waterfalls = results.measurement.waterfalls
    factor, unit = (1000, "ms") if max(item.measured_seconds for item in waterfalls) < 1 else (1, "s")
    names: list[str] = []
    least = 0.0
    for waterfall in waterfalls:
        if len(waterfalls) > 1:
            axes.text(0, len(names), shorten(waterfall.cell), va="center", fontweight="bold")
            names.append("")
        begin = 0.0
        rows: list[tuple[str, float, Estimate | None]] = [("ideal", waterfall.ideal_seconds, None)]
        rows += [(part.name, part.seconds.value, part.seconds) for part in waterfall.parts]
        rows += [("unexplained", waterfall.unexplained_seconds, None), ("measured", waterfall.measured_seconds, None)]
        for name, seconds, interval in rows:
            begin = 0.0 if name == "measured" else begin
            _draw_row(axes, len(names), name, seconds, interval, begin=begin, factor=factor)
            # Small parts without the ideal step before them may reach below 0.
            least = min(least, begin + min(seconds, interval.low if interval else 0.0))
            begin += seconds
            names.append(name)
    set_height(axes, _INCHES_AROUND + _INCHES_PER_ROW * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(f"{unit} per optimizer step")
    axes.set_ylabel("part of the step")
    axes.margins(x=0.16)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0] if least < 0 else 0.0))
    axes.grid(axis="x")


def _draw_row(
    axes: Axes, place: int, name: str, seconds: float, interval: Estimate | None, *, begin: float, factor: float
) -> None:
    """Draw one bar with its 95 % interval, and its figure at the right end of both."""
    left, length = factor * begin, factor * seconds
    style: dict[str, Any] = {"color": select_color(_COLORS.get(name, 3))}
    if name == "unexplained":
        style = {"facecolor": "none", "edgecolor": MUTED, "hatch": "////"}
    bars = axes.barh(place, length, 0.7, left=left, **style)
    ends, text = [left, left + length], wording.format_duration(seconds)
    if interval is not None:
        low, high = (factor * (begin + end) for end in (interval.low, interval.high))
        axes.plot([low, high], [place, place], color=INK, linewidth=1, marker="|", markersize=5)
        ends, text = [*ends, low, high], wording.format_duration_with_interval(interval)
    add_hover(bars[0], f"{name}: {text}")
    shown, at = wording.format_three_digits(length), (max(ends), place)
    axes.annotate(shown, at, xytext=(4, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
