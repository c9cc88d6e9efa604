"""How much sooner an equally good model is predicted to be there, over the global batch, a line per number of ranks."""

from itertools import groupby

from tasks.process import wording
from tasks.reporting.drawing import INK, Axes, add_legend, select_color, select_dashes, set_height, shorten
from tasks.reporting.goodput import GoodputPoint
from tasks.reporting.results import Results

TITLE = "Predicted: how much sooner"
POSITION = 72
NEEDS_SPEEDUP = True
SECTION = "batch"
CAPTION = "Predicted time of the first cell / time to an equally good model, by global batch; bands are intervals."

_MARKERS = "os^vDP"


def is_shown(results: Results) -> bool:
    """Return whether any point was predicted."""
    return results.goodput is not None and bool(results.goodput.points)


def describe_chart(results: Results) -> str:
    """Return every number of ranks with its soonest batch, and the best point."""
    assert results.goodput is not None
    lines = _list_lines(results)
    told = "; ".join(
        f"{wording.format_plural(size, 'rank')}: {wording.format_ratio_with_interval(top.speedup)} at a batch of "
        f"{top.global_batch_size}"
        for size, points in lines
        for top in [max(points, key=lambda one: one.speedup.value)]
    )
    best = results.goodput.best
    named = f" Best: {best.world_size} ranks at a batch of {best.global_batch_size}." if best else ""
    return f"Soonest of {told}.{named}"


def draw(results: Results, axes: Axes) -> None:
    """Draw a line with its band per number of ranks, and a ring around the best point."""
    assert results.goodput is not None
    for number, (size, points) in enumerate(_list_lines(results)):
        batches, color = [one.global_batch_size for one in points], select_color(number)
        ends = [one.speedup.low for one in points], [one.speedup.high for one in points]
        axes.fill_between(batches, *ends, color=color, alpha=0.12, linewidth=0)
        axes.plot(
            batches, [one.speedup.value for one in points], color=color, linestyle=select_dashes(number), linewidth=1.8,
            marker=_MARKERS[number % len(_MARKERS)], markersize=4, label=wording.format_plural(size, "rank"),
        )  # fmt: skip
    if (best := results.goodput.best) is not None:
        axes.plot(
            [best.global_batch_size], [best.speedup.value], marker="o", markersize=12, markerfacecolor="none",
            markeredgecolor=INK, linestyle="none", label="best",
        )  # fmt: skip
    batches = sorted({one.global_batch_size for one in results.goodput.points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(one) for one in batches])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("samples per optimizer step (log scale)")
    axes.set_ylabel(f"times as soon as {shorten(results.baseline.cell)}")
    set_height(axes, 3.4)
    axes.grid()
    add_legend(axes)


def _list_lines(results: Results) -> list[tuple[int, list[GoodputPoint]]]:
    assert results.goodput is not None
    points = sorted(results.goodput.points, key=lambda one: (one.world_size, one.global_batch_size))
    return [(size, list(found)) for size, found in groupby(points, key=lambda one: one.world_size)]
