"""The chart of every point: what was predicted, with its interval, against what was measured."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.prediction.points import KNOWN, Point
from tasks.records.estimate import Estimate

_KINDS = {
    (2, KNOWN[0]): ("o", "#0072b2", "2 ranks, probed"),
    (4, KNOWN[1]): ("s", "#d55e00", "4 ranks, their link measured"),
    (4, KNOWN[2]): ("^", "#cc79a7", "4 ranks, nothing of them measured"),
}
"""Number of ranks and what was measured of them -> marker, colour, words."""
_INK, _MUTED = "#1a1f26", "#a4adb8"


def draw(points: Sequence[Point], file: Path, *, others: Sequence[Point] = ()) -> None:
    """Write the SVG; `others`: the points that calibrated, drawn pale."""
    figure = Figure(figsize=(7.0, 6.4), layout="constrained")
    axes = figure.subplots()
    estimates = [estimate for point in (*points, *others) for estimate in (point.predicted, point.measured)]
    least, most = min(one.low for one in estimates) * 0.9, max(one.high for one in estimates) * 1.05
    axes.plot([least, most], [least, most], color=_INK, linewidth=1, label="predicted = measured")
    axes.fill_between(
        [least, most], [least * 0.8, most * 0.8], [least * 1.2, most * 1.2], color=_MUTED, alpha=0.15, linewidth=0,
        label="within 20 %",
    )  # fmt: skip
    for (size, known), (marker, color, words) in _KINDS.items():
        mine, theirs = (
            [one for one in some if (one.world_size, one.known) == (size, known)] for some in (points, others)
        )
        name = f"point-{size}-{known.replace(' ', '-')}"
        # Those that calibrated lie behind.
        _scatter(axes, theirs, _MUTED, name=f"{name}-calibrates", marker=marker, label=None)
        _scatter(axes, mine, color, name=name, marker=marker, label=words)
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)
    axes.set_aspect("equal")
    axes.set_xlabel("measured speedup (95 % interval)")
    axes.set_ylabel("predicted speedup (90 % interval)")
    axes.set_title("Predicted against measured, on emulated devices; grey: used to calibrate")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(file, metadata={"Date": None})


def _scatter(axes: Axes, points: Sequence[Point], color: str, *, name: str, marker: str, label: str | None) -> None:
    if not points:
        return
    x, y = [point.measured for point in points], [point.predicted for point in points]
    drawn = axes.errorbar(
        [one.value for one in x], [one.value for one in y], xerr=_bars(x), yerr=_bars(y),
        color=color, marker=marker, markersize=5, linestyle="none", elinewidth=1, capsize=2, label=label,
    )  # fmt: skip
    drawn.lines[0].set_gid(name)


def _bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    return [[one.value - one.low for one in estimates], [one.high - one.value for one in estimates]]
