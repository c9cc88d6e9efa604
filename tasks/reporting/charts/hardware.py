"""What cores, memory and GPUs did while the speed was measured, a small line for each rank."""

from collections.abc import Callable, Sequence

from tasks.reporting.drawing import Axes, add_hover_points, add_legend, select_color, select_dashes, set_height
from tasks.reporting.hardware import CellHardware, HardwareReading
from tasks.reporting.results import Results

TITLE = "Hardware over time"
POSITION = 90
NEEDS_SPEEDUP = False
SECTION = "measured"
CAPTION = (
    "Each timed block of a cell, in the order of time: what every rank used of the cores and held of the host's memory "
    "and, on GPUs, what the driver said of each. A line begins at 0, and its lane is as high as the largest figure."
)

_Read = Callable[[HardwareReading], Sequence[float | None] | None]
_LANES: dict[str, tuple[_Read, float, str]] = {
    "cores used": (lambda one: one.cores_used, 1, ""),
    "host memory": (lambda one: one.host_gib, 1, " GiB"),
    "GPU busy": (lambda one: one.gpu_utilisations, 100, " %"),
    "GPU power": (lambda one: one.gpu_watts, 1, " W"),
    "GPU memory": (lambda one: one.gpu_memory_gib, 1, " GiB"),
}
"""Name -> figures of a reading rank by rank, what they are multiplied by, and their unit."""
_MOST_RANKS = 16
_INCHES_PER_LANE, _INCHES_AROUND = 0.75, 1.1
_HEIGHT = 0.8
"""Of a line that is at its largest figure, where the next lane begins at 1."""


def is_shown(results: Results) -> bool:
    """Return whether blocks were timed by this version."""
    return bool(results.hardware)


def describe_chart(results: Results) -> str:
    """Return the range of every lane, cell by cell."""
    told = []
    for name, (read, factor, unit) in _LANES.items():
        for one in results.hardware:
            known = [value * factor for _, values in _list_lines(one, read) for value in values]
            if known:
                told.append(f"{name} of {one.cell} {min(known):.3g} to {max(known):.3g}{unit}")
    return f"{', '.join(told)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a lane for each figure that was read, with a line for each rank, in the colour of its cell."""
    start = min(one.readings[0].started_at for one in results.hardware)
    lanes = {name: lane for name, lane in _LANES.items() if any(_list_lines(one, lane[0]) for one in results.hardware)}
    labels = []
    for place, (name, (read, factor, unit)) in enumerate(lanes.items()):
        base = len(lanes) - 1 - place
        lines = [(number, one, *line) for number, one in enumerate(results.hardware) for line in _list_lines(one, read)]
        most = max(value for *_, values in lines for value in values) or 1.0
        labels.append(f"{name}\nto {most * factor:.3g}{unit}")
        for number, one, rank, values in lines:
            minutes = [(reading.started_at - start) / 60 for reading in one.readings]
            heights = [base + _HEIGHT * value / most for value in values]
            named = one.cell if place == 0 and rank == 0 else None
            axes.plot(
                minutes, heights, color=select_color(number), linestyle=select_dashes(rank), linewidth=1.1, label=named
            )
            texts = [f"{one.cell}, rank {rank}: {value * factor:.3g}{unit}" for value in values]
            add_hover_points(axes, minutes, heights, texts)
    set_height(axes, _INCHES_AROUND + _INCHES_PER_LANE * len(lanes))
    axes.set_yticks(range(len(lanes)), labels[::-1])
    axes.set_ylim(-0.1, len(lanes))
    axes.set_xlabel("minutes of measuring")
    axes.grid(axis="x")
    add_legend(axes)


def _list_lines(one: CellHardware, read: _Read) -> list[tuple[int, list[float]]]:
    """Return (rank, its figures, one for each reading) of those that were read in every block."""
    rows = [read(reading) or [] for reading in one.readings]
    number = min(len(row) for row in rows)
    lines = [(rank, [row[rank] for row in rows]) for rank in range(min(number, _MOST_RANKS))]
    return [(rank, [value for value in values if value is not None]) for rank, values in lines if None not in values]
