"""Every estimate of each cell's speedup on one axis: the one that is given, and what other figures would say."""

from dataclasses import dataclass

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.records.measurement import ArmSpeed
from tasks.reporting.cell_results import CellResults
from tasks.reporting.drawing import INK, MUTED, Axes, add_hover, select_color, set_height, shorten
from tasks.reporting.results import Results

TITLE = "Speedup by every figure"
POSITION = 80
NEEDS_SPEEDUP = True
SECTION = "trust"
CAPTION = (
    "The speedup that is given, in full colour, and what other figures say of the same cells; bars are 95 % "
    "intervals, that of the whole training the spread of its segments."
)

_INCHES_PER_ROW, _INCHES_AROUND = 0.3, 1.25


@dataclass(frozen=True)
class _Row:
    name: str
    value: float
    low: float
    high: float
    is_given: bool = False


def is_shown(results: Results) -> bool:
    """Return whether there is a speedup by several figures."""
    return results.is_speedup_measured and results.measurement is not None


def describe_chart(results: Results) -> str:
    """Return every figure with its interval, where it has one."""
    told = [f"{cell.cell}: {'; '.join(map(_describe, _list_rows(results, cell)))}." for cell in results.answers]
    return " ".join(told)


def _describe(row: _Row) -> str:
    doubt = "" if row.low == row.high else f" ({wording.format_ratio(row.low)} to {wording.format_ratio(row.high)})"
    return f"{row.name} {wording.format_ratio(row.value)}{doubt}"


def draw(results: Results, axes: Axes) -> None:
    """Draw a row per figure, the cells below each other, and a line at the speedup that is given."""
    names: list[str] = []
    for number, cell in enumerate(results.cells):
        if cell not in results.answers:
            continue
        if len(results.answers) > 1:
            names.append(shorten(cell.cell))
        for row in _list_rows(results, cell):
            color = select_color(number) if row.is_given else MUTED
            place = len(names)
            axes.plot([row.low, row.high], [place, place], color=color, linewidth=2 if row.is_given else 1.2)
            (point,) = axes.plot([row.value], [place], color=color, marker="o", markersize=7 if row.is_given else 4.5)
            add_hover(point, f"{cell.cell}, {_describe(row)}")
            shown = wording.format_ratio(row.value)
            end = (row.high, place)
            axes.annotate(shown, end, xytext=(6, 0), textcoords="offset points", va="center", fontsize=9, color=INK)
            names.append(row.name)
    set_height(axes, _INCHES_AROUND + _INCHES_PER_ROW * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(f"times as fast as {shorten(results.baseline.cell)}")
    axes.set_ylabel("figure")
    axes.margins(x=0.16)
    axes.grid(axis="x")


def _list_rows(results: Results, cell: CellResults) -> list[_Row]:
    """Return the figures, the one that is given first."""
    measurement = results.measurement
    arms = [] if measurement is None else measurement.arms
    arm = next((one for one in arms if one.cell == cell.cell and not one.is_wrapped_baseline), None)
    measured = [] if arm is None else _list_measured(arm)
    ratio, spread = cell.whole.speedup, cell.speedup_of_segments
    if ratio is None:
        return measured
    ends = (ratio, ratio) if spread is None else (min(spread.lowest, ratio), max(spread.highest, ratio))
    return [*measured, _Row("whole training, one run", ratio, *ends)]


def _list_measured(arm: ArmSpeed) -> list[_Row]:
    rows = [_make_row("measured", arm.speedup, is_given=True), _make_row("all turns", arm.speedup_of_all_turns)]
    rows += [
        _Row(name, value, value, value)
        for name, value in (("medians", arm.speedup_of_medians), ("trimmed means", arm.speedup_of_trimmed_means))
        if value is not None
    ]
    rows.append(_make_row("against the wrapped", arm.speedup_over_wrapped))
    return [row for row in rows if row is not None]


def _make_row(name: str, found: Estimate | None, *, is_given: bool = False) -> _Row | None:
    return None if found is None else _Row(name, found.value, found.low, found.high, is_given)
