"""What a step takes of memory, measured and foretold, and which cell is best on a card of some size."""

from collections.abc import Callable

from tasks.process import wording
from tasks.records.cell_memory import CellMemory, MemoryParts, RankMemory
from tasks.reporting.blocks import Block, Charts, Fold, Items, Table, Text, tabulate
from tasks.reporting.frontier import CARDS_GB, Place, find_best, is_of_cpu, list_places
from tasks.reporting.results import Results

TITLE = "How much memory, and what fits?"

_Row = tuple[CellMemory, str, MemoryParts]
_PARTS: list[tuple[str, Callable[[MemoryParts], float]]] = [
    ("Weights", lambda parts: parts.weights),
    ("Gradients", lambda parts: parts.gradients),
    ("Moments", lambda parts: parts.moments),
    ("Activations", lambda parts: parts.activations),
    ("Logits", lambda parts: parts.logits),
    ("Communication", lambda parts: parts.communication),
    ("In all", lambda parts: parts.total),
]
_OF_CPU = "Measured on CPUs: counted from tensor sizes, without a GPU. It is what the same step would take of a card."


def make_blocks(results: Results) -> list[Block]:
    """Return the frontier, the best cell by card, and the memory of each cell by what it is for."""
    measurement = results.measurement
    if measurement is None or not measurement.memory:
        return [Text("Not measured: the stage measure left no memory of a step.")]
    places = list_places(results)
    said = []
    if hidden := [one.cell for one in measurement.memory if results.is_hidden(one.cell)]:
        said.append(f"Withheld where gates failed: the place of {wording.join_names(hidden)}.")
    if doubtful := [place.cell for place in places if not place.is_proven]:
        said.append(f"Never named as the best, since a gate was not checked: {wording.join_names(doubtful)}.")
    blocks: list[Block] = [*[Text(_OF_CPU)] * is_of_cpu(results), Charts("memory")]
    if places:
        blocks.append(_tabulate_best(results))
    left_out = [
        f"{one.cell}: nothing is foretold of its memory: {one.not_predicted}."
        for one in measurement.memory
        if one.not_predicted is not None
    ]
    if left_out:
        said += left_out
    told: list[Block] = [
        *[Items(said)] * bool(said),
        *_tabulate_parts(measurement.memory),
        _tabulate_ranks(measurement.memory),
    ]
    return [*blocks, Fold("What it is for, and every rank", told)]


def _tabulate_best(results: Results) -> Table:
    places = list_places(results)
    found = [(card, find_best(places, card)) for card in CARDS_GB]
    return tabulate(
        "Fastest proven cell that a card has room for, of the cells that were measured",
        [
            ("Card", lambda row: f"{row[0]} GB"),
            ("Best cell", lambda row: "none of them fits" if row[1] is None else row[1].cell),
            ("Time per token", lambda row: wording.format_optional(row[1], _format_time)),
            ("Needs", lambda row: wording.format_optional(row[1], lambda one: f"{one.needed_gb:.1f} GB")),
        ],
        found,
    ).replace_unit(results.unit)


def _format_time(place: Place) -> str:
    return wording.format_microseconds_with_interval(place.seconds_per_token)


def _tabulate_parts(memory: list[CellMemory]) -> list[Block]:
    """Return what the rank that has most holds, measured and foretold below each other."""
    rows: list[_Row] = []
    for one in memory:
        if (measured := one.largest.parts) is not None:
            rows.append((one, "measured", measured))
        if one.predicted is not None:
            rows.append((one, "predicted", one.predicted))
    if not rows:
        return []
    columns: list[tuple[str, Callable[[_Row], str]]] = [
        ("Cell", lambda row: row[0].cell),
        ("Memory", lambda row: row[1]),
        *((name, lambda row, part=part: wording.format_memory(part(row[2]))) for name, part in _PARTS),
    ]
    return [tabulate("Most memory of a rank in a step, by what it is for", columns, rows, num_row_headings=2)]


def _tabulate_ranks(memory: list[CellMemory]) -> Table:
    rows = [(one.cell, rank, found) for one in memory for rank, found in enumerate(one.ranks)]
    sizes: list[tuple[str, Callable[[RankMemory], float | None]]] = [
        ("Allocated", lambda one: one.allocated_gib),
        ("Reserved", lambda one: one.reserved_gib),
        ("Host", lambda one: one.host_gib),
        ("Host before", lambda one: one.host_before_gib),
    ]
    columns: list[tuple[str, Callable[[tuple[str, int, RankMemory]], str]]] = [
        ("Cell", lambda row: row[0]),
        ("Rank", lambda row: str(row[1])),
        *(
            (name, lambda row, size=size: wording.format_optional(size(row[2]), wording.format_memory))
            for name, size in sizes
        ),
    ]
    return tabulate("Most memory of each rank in a step", columns, rows, num_row_headings=2)
