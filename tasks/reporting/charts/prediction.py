"""Predicted speedup over the number of ranks, with its band and what was measured."""

from tasks.process import wording
from tasks.records.predicted import PredictedPoint, Prediction
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
    return results.is_withheld or any(curve.points for one in measurement.predictions for curve in one.curves[:1])


def describe_chart(results: Results) -> str:
    """Return the predicted speedups with their intervals, and the measured ones beside them."""
    predictions = _list_predictions(results)
    if len(predictions) > 1:
        told = [f"{wording.join_names(one.cells)}: {_describe_points(_list_points(one))}" for one in predictions]
        return " ".join(told)
    return _describe_points(_list_points(predictions[0]))


def _describe_points(points: list[PredictedPoint]) -> str:
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
    predictions, base = _list_predictions(results), results.baseline.world_size
    points = [point for one in predictions for point in _list_points(one)]
    sizes = [point.world_size for point in points]
    ends = [min(base, *sizes), max(sizes)]
    axes.plot(ends, [size / base for size in ends], color=MUTED, linestyle=(0, (1, 2)), linewidth=1.2, label="linear")
    if len(predictions) == 1:
        _draw_band(axes, points, select_color(1))
        _draw_line(axes, points, select_color(1))
        _draw_changes(axes, predictions[0])
    else:
        # Bands of several would hide each other; they are in the tables.
        for number, one in enumerate(predictions):
            name, marker = wording.join_names(one.cells), _MARKERS[number % len(_MARKERS)]
            _draw_line(axes, _list_points(one), select_color(number + 1), name=shorten(name, 30), marker=marker)
    for point in points:
        if (measured := point.measured) is not None:
            errors = [[measured.value - measured.low], [measured.high - measured.value]]
            axes.errorbar(
                [point.world_size], [measured.value], yerr=errors, color=INK, marker="o", markersize=5, capsize=4,
                linestyle="none", label="measured" if point is _find_first_measured(points) else None,
            )  # fmt: skip
    for curve in [curve for one in predictions for curve in one.curves[: 1 + len(_MARKERS)]]:
        told = [
            f"{curve.lever}, {point.world_size}: {wording.format_ratio_with_interval(point.shown)}"
            for point in curve.points
        ]
        sizes_of_curve = [point.world_size for point in curve.points]
        add_hover_points(axes, sizes_of_curve, [point.shown.value for point in curve.points], told)
    _label_axes(axes, sorted({base, *sizes}), min(point.shown.low for point in points), results)


def _draw_band(axes: Axes, points: list[PredictedPoint], color: str) -> None:
    low, high = [point.shown.low for point in points], [point.shown.high for point in points]
    if len(points) > 1:
        sizes = [point.world_size for point in points]
        axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0, label="90 % interval")


def _draw_changes(axes: Axes, prediction: Prediction) -> None:
    for number, curve in enumerate(prediction.curves[1 : 1 + len(_MARKERS)]):
        axes.plot(
            [point.world_size for point in curve.points],
            [point.shown.value for point in curve.points],
            color=select_color(number + 2), linewidth=1, marker=_MARKERS[number], markersize=3.5,
            label=shorten(curve.lever.partition(", ")[0], 30),
        )  # fmt: skip


def _draw_line(
    axes: Axes, points: list[PredictedPoint], color: str, *, name: str | None = None, marker: str = ""
) -> None:
    """Draw one line, dashed where nothing was measured; with a name that alone is in the legend."""
    within = sum(not point.is_extrapolated for point in points)
    for part, style, label in (
        (points[:within], "-", name or "predicted"),
        (points[max(within - 1, 0) :], (0, (4, 2)), None if name and within > 1 else name or "extrapolated"),
    ):
        if len(part) > 1 or (part and part[-1].is_extrapolated):
            axes.plot(
                [point.world_size for point in part],
                [point.shown.value for point in part],
                color=color, linewidth=2.2, linestyle=style, label=label, marker=marker, markersize=5,
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


def _list_predictions(results: Results) -> list[Prediction]:
    assert results.measurement is not None
    return [one for one in results.measurement.predictions if one.curves and one.curves[0].points]


def _list_points(prediction: Prediction) -> list[PredictedPoint]:
    return sorted(prediction.curves[0].points, key=lambda point: point.world_size)


def _find_first_measured(points: list[PredictedPoint]) -> PredictedPoint | None:
    return next((point for point in points if point.measured is not None), None)
