"""Predicted speedup over the number of ranks, with its band and what was measured."""

from tasks.process import wording
from tasks.records.measurement import PredictedPoint
from tasks.reporting.drawing import INK, MUTED, Axes, add_hover_points, add_legend, select_color, set_height, shorten
from tasks.reporting.results import Results

TITLE = "Predicted speedup"
POSITION = 70
NEEDS_SPEEDUP = True
SECTION = "prediction"
CAPTION = (
    "Speedup as the comparison stands. Points: measured, with 95 % intervals. Dashed: more ranks than were measured, "
    "with 90 % intervals. Thin lines: after one change."
)

_MARKERS = "s^vD"
"""One per thin line, so that no line is told by its colour alone; changes beyond these are in the table only."""


def is_shown(results: Results) -> bool:
    """Return whether there is a prediction, or none because it is withheld."""
    measurement = results.measurement
    if measurement is None:
        return False
    curves = [] if measurement.prediction is None else measurement.prediction.curves
    return results.is_withheld or any(curve.points for curve in curves[:1])


def describe_chart(results: Results) -> str:
    """Return the predicted speedups with their intervals, and the measured ones beside them."""
    points = _list_points(results)
    foretold = ", ".join(
        f"{wording.format_ratio_with_interval(point.speedup)} on {wording.format_plural(point.world_size, 'rank')}"
        f"{' (extrapolated)' if point.is_extrapolated else ''}"
        for point in points
        if point.speedup is not None
    )
    measured = ", ".join(
        f"{wording.format_ratio_with_interval(point.measured)} on {wording.format_plural(point.world_size, 'rank')}"
        for point in points
        if point.measured is not None
    )
    return f"Measured: {measured}. Predicted from there: {foretold or 'nothing'}."


def draw(results: Results, axes: Axes) -> None:
    """Draw the prediction with its band, dashed beyond what was measured, thin lines per change, and the ideal."""
    assert results.measurement is not None
    assert results.measurement.prediction is not None
    points, base = _list_points(results), results.baseline.world_size
    sizes = [point.world_size for point in points]
    ends = [min(base, *sizes), max(sizes)]
    axes.plot(ends, [size / base for size in ends], color=MUTED, linestyle=(0, (1, 2)), linewidth=1.2, label="linear")
    color = select_color(1)
    low, high = [point.shown.low for point in points], [point.shown.high for point in points]
    if len(points) > 1:
        axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0, label="90 % interval")
    _draw_line(axes, points, color)
    for number, curve in enumerate(results.measurement.prediction.curves[1 : 1 + len(_MARKERS)]):
        axes.plot(
            [point.world_size for point in curve.points],
            [point.shown.value for point in curve.points],
            color=select_color(number + 2), linewidth=1, marker=_MARKERS[number], markersize=3.5,
            label=shorten(curve.lever, 30),
        )  # fmt: skip
    for point in points:
        if (measured := point.measured) is not None:
            errors = [[measured.value - measured.low], [measured.high - measured.value]]
            axes.errorbar(
                [point.world_size], [measured.value], yerr=errors, color=INK, marker="o", markersize=5, capsize=4,
                linestyle="none", label="measured" if point is _find_first_measured(points) else None,
            )  # fmt: skip
    lines = [points, *(curve.points for curve in results.measurement.prediction.curves[1 : 1 + len(_MARKERS)])]
    levers = [curve.lever for curve in results.measurement.prediction.curves]
    for lever, line in zip(levers, lines, strict=False):
        told = [f"{lever}, {point.world_size}: {wording.format_ratio_with_interval(point.shown)}" for point in line]
        add_hover_points(axes, [point.world_size for point in line], [point.shown.value for point in line], told)
    _label_axes(axes, sorted({base, *sizes}), min(low), results)


def _draw_line(axes: Axes, points: list[PredictedPoint], color: str) -> None:
    within = sum(not point.is_extrapolated for point in points)
    for part, style, label in (
        (points[:within], "-", "predicted"),
        (points[max(within - 1, 0) :], (0, (4, 2)), "extrapolated"),
    ):
        if len(part) > 1 or (part and part[-1].is_extrapolated):
            axes.plot(
                [point.world_size for point in part],
                [point.shown.value for point in part],
                color=color, linewidth=2.2, linestyle=style, label=label,
            )  # fmt: skip


def _label_axes(axes: Axes, ticks: list[int], lowest: float, results: Results) -> None:
    base = results.baseline.world_size
    below = [speedup for speedup in (0.125, 0.25, 0.5) if speedup > lowest / 2 and lowest < 1]
    speedups = [*below, *(tick / base for tick in ticks)]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(speedups, [f"{speedup:g}" for speedup in speedups])
    axes.set_xticks([], minor=True)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("number of ranks (log scale)")
    axes.set_ylabel(f"times as fast as {shorten(results.baseline.cell)} (log scale)")
    set_height(axes, 3.9)
    axes.grid()
    add_legend(axes, columns=2)


def _list_points(results: Results) -> list[PredictedPoint]:
    assert results.measurement is not None
    assert results.measurement.prediction is not None
    return sorted(results.measurement.prediction.curves[0].points, key=lambda point: point.world_size)


def _find_first_measured(points: list[PredictedPoint]) -> PredictedPoint | None:
    return next((point for point in points if point.measured is not None), None)
