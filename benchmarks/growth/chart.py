"""The chart of seconds and memory against size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1a1f26", "#7f6a00")
_MARKERS = "os^vDPX*"


def draw(
    points: Mapping[str, Mapping[int, Mapping[str, float]]],
    labels: Mapping[str, str],
    file: Path,
    *,
    over: Sequence[str],
) -> None:
    """Write the SVG of the parts in `over`, which grow with rows or steps: seconds above, memory below, logarithmic."""
    figure = Figure(figsize=(7.4, 8.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for number, name in enumerate(over):
        sizes = sorted(points[name])
        for axes, key in ((above, "seconds"), (below, "memory_mib")):
            axes.plot(
                sizes, [max(points[name][size][key], 1e-4) for size in sizes], color=_COLORS[number % len(_COLORS)],
                marker=_MARKERS[number % len(_MARKERS)], markersize=5, linewidth=1.3, label=labels[name],
            )  # fmt: skip
    sizes = sorted({size for name in over for size in points[name]})
    above.plot(sizes, [1e-4 * size for size in sizes], color="#a4adb8", linestyle="--", linewidth=1, label="linear")
    above.set_ylabel("seconds")
    below.set_ylabel("memory beyond what the process had, MiB")
    below.set_xlabel("rows; of log points: optimizer steps")
    for axes in (above, below):
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
    above.set_yscale("log")
    below.set_yscale("symlog", linthresh=10)
    above.legend(fontsize=8, ncols=2)
    figure.savefig(file, metadata={"Date": None})
