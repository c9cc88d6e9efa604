"""Seconds per token over memory per rank, a point per cell with its interval: what is down and left is better."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.machine.gpu_checks import compute_needed_gib
from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.reporting.drawing import MUTED, Axes, add_hover_points, name_points, select_color, set_height, shorten
from tasks.reporting.results import Results

TITLE = "Time per token against memory per rank"
POSITION = 75
NEEDS_SPEEDUP = True
SECTION = "memory"
CAPTION = (
    "Time per unit of work, all ranks together, with 95 % intervals, over the most memory that a rank allocated: the "
    "first cell's own time, and of the others that time divided by their speedup. No other cell is better in both than "
    "those that the dashed line joins."
)


_GB_PER_GIB = 2**30 / 1e9


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a cell stands."""

    cell: str
    """Its name."""
    number: int
    """Its place among the cells, from 0."""
    seconds_per_token: Estimate
    """Of all ranks together, with a 95 % interval: the baseline's, and of the other cells those / the speedup, which is
    of turns that both had. Their own seconds may be of other turns than each other's."""
    memory_gib: float
    """Allocated by the rank that has most."""
    needed_gb: float
    """What that rank needs of a card, a context and pieces of memory included; 10^9 bytes."""
    is_proven: bool
    """Whether all gates of the cell and of the baseline passed, and the interval of its speedup tells."""


def list_places(results: Results) -> list[Place]:
    """Return the cells whose speed and memory were measured and whose gates did not fail, in their order."""
    measurement, places = results.measurement, list[Place]()
    memory = {item.cell: item.largest for item in (measurement.memory if measurement else ())}
    seconds = 1 / results.baseline.tokens_per_second
    for number, cell in enumerate(results.cells):
        largest = memory.get(cell.cell)
        if largest is None or largest.allocated_gib is None or cell.speed is None or results.is_hidden(cell.cell):
            continue
        if (speedup := cell.speedup) is not None:
            time = Estimate(seconds / speedup.value, seconds / speedup.high, seconds / speedup.low)
        else:
            step = cell.speed.step_seconds
            time = step.times(1 / cell.speed.tokens_per_second / step.value)
        places.append(
            Place(
                cell=cell.cell,
                number=number,
                seconds_per_token=time,
                memory_gib=largest.allocated_gib,
                needed_gb=compute_needed_gib(largest.allocated_gib, largest.reserved_gib) * _GB_PER_GIB,
                is_proven=cell.standing.state == "proven",
            )
        )
    return places


def find_best(places: Sequence[Place], card_gb: float) -> Place | None:
    """Return the proven cell with the fewest seconds per token that needs no more than the card has; None: none."""
    fit = [place for place in places if place.is_proven and place.needed_gb <= card_gb]
    return min(fit, key=lambda place: place.seconds_per_token.value, default=None)


def is_of_cpu(results: Results) -> bool:
    """Return whether memory was counted where there is no card."""
    return results.measurement is not None and any(item.device == "cpu" for item in results.measurement.memory)


def is_shown(results: Results) -> bool:
    """Return whether memory was measured."""
    return results.measurement is not None and bool(results.measurement.memory)


def describe_chart(results: Results) -> str:
    """Return every cell's place, and which of them no other one beats in both."""
    places = list_places(results)
    text = "; ".join(
        f"{place.cell} {wording.format_microseconds_with_interval(place.seconds_per_token)} with "
        f"{wording.format_memory(place.memory_gib)}"
        for place in places
    )
    where = "that of the CPU, no card's" if is_of_cpu(results) else "by torch's allocator"
    edge = wording.join_names([place.cell for place in _select_edge(places)])
    return f"Memory is {where}: {text}. No other cell is better in both than {edge}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a point with its interval per cell, and a line through those that nothing beats in both."""
    places = list_places(results)
    factor, unit = (1, "GiB") if max((place.memory_gib for place in places), default=0.0) >= 1 else (1024, "MiB")
    edge = _select_edge(places)
    axes.plot(
        [factor * place.memory_gib for place in edge], [1e6 * place.seconds_per_token.value for place in edge],
        color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2,
    )  # fmt: skip
    for place in places:
        time, at = place.seconds_per_token, factor * place.memory_gib
        axes.errorbar(
            [at], [1e6 * time.value], yerr=[[1e6 * (time.value - time.low)], [1e6 * (time.high - time.value)]],
            color=select_color(place.number), marker="o" if place.is_proven else "s", markersize=5, capsize=4,
        )  # fmt: skip
        text = wording.format_microseconds_with_interval(time)
        add_hover_points(axes, [at], [1e6 * time.value], [f"{place.cell}: {text}, {at:.3g} {unit}"])
    axes.margins(x=0.25)
    set_height(axes, 1.5 + 0.3 * len(places))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"most memory allocated by a rank ({unit})")
    axes.set_ylabel(f"µs per {results.unit}")
    axes.grid()
    name_points(
        axes, [(shorten(place.cell), factor * place.memory_gib, place.seconds_per_token.times(1e6)) for place in places]
    )


def _select_edge(places: list[Place]) -> list[Place]:
    """Return the places that are faster than all with no more memory, by memory."""
    edge: list[Place] = []
    for place in sorted(places, key=lambda item: (item.memory_gib, item.seconds_per_token.value)):
        if not edge or place.seconds_per_token.value < edge[-1].seconds_per_token.value:
            edge.append(place)
    return edge
