"""How far the training losses of the cells are apart, step by step, on a logarithmic axis."""

import math

from tasks.process import wording
from tasks.reporting.drawing import Axes, add_hover_points, add_legend, select_color, select_dashes, shorten
from tasks.reporting.results import LossCurve, Results

TITLE = "Training losses apart"
POSITION = 52
NEEDS_SPEEDUP = False
SECTION = "quality"
CAPTION = (
    "How far a loss is from that of the first cell, relative to it, on a logarithmic axis. Rounding grows with the "
    "steps; a defect is there at once."
)


def is_shown(results: Results) -> bool:
    """Return whether two curves have the same steps and differ in one."""
    return any(max(_compute_differences(results, curve)) > 0 for curve in _list_others(results))


def describe_chart(results: Results) -> str:
    """Return the largest difference of every cell from the baseline, and at which step."""
    told = []
    for curve in _list_others(results):
        apart = _compute_differences(results, curve)
        largest = max(apart)
        step = curve.steps[apart.index(largest)]
        told.append(f"{curve.cell} at most {wording.format_difference(largest)} at step {wording.format_count(step)}")
    return f"{'; '.join(told)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a line per cell but the baseline; steps of equal losses have no place on the axis."""
    numbers = {cell.cell: number for number, cell in enumerate(results.cells)}
    for curve in _list_others(results):
        points = [one for one in zip(curve.steps, _compute_differences(results, curve), strict=True) if one[1]]
        number = numbers[curve.cell]
        axes.plot(
            [step for step, _ in points],
            [apart for _, apart in points],
            color=select_color(number), linestyle=select_dashes(number), marker="o", markersize=2,
            label=shorten(curve.cell),
        )  # fmt: skip
        told = [f"{curve.cell}, step {step}: {apart:.1e}" for step, apart in points]
        add_hover_points(axes, [step for step, _ in points], [apart for _, apart in points], told)
    axes.set_yscale("log")
    if apart := [one for curve in _list_others(results) for one in _compute_differences(results, curve) if one]:
        # To whole powers of 10, which alone have a label.
        axes.set_ylim(10 ** math.floor(math.log10(min(apart))), 10 ** (math.floor(math.log10(max(apart))) + 1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"apart from {shorten(results.baseline.cell)} (relative, log scale)")
    axes.margins(x=0.02)
    axes.grid()
    add_legend(axes)


def _list_others(results: Results) -> list[LossCurve]:
    first, *others = results.loss_curves
    return [curve for curve in others if curve.steps and curve.steps == first.steps]


def _compute_differences(results: Results, curve: LossCurve) -> list[float]:
    first = results.loss_curves[0].losses
    return [
        abs(one - other) / abs(other) if other else abs(one) for one, other in zip(curve.losses, first, strict=True)
    ]
