"""A rehearsal on the terminal: one table and one paragraph per cell, and a table of all cells."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich.console import Console
from rich.table import Table

from tasks.machine.gpu_checks import GIB_PER_CONTEXT, IN_PIECES
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.process.wording import (
    NOT_AVAILABLE,
    format_optional,
    format_plural,
    format_three_digits,
    format_usd,
)
from tasks.rehearsal.cards import GIB, Card
from tasks.rehearsal.cell import RehearsedCell
from tasks.rehearsal.speed import ASSUMED, Range, model_speedup, model_tokens_per_second
from training.probing.live_memory import KINDS

LABEL = "modelled, not measured"


def tell_cell(console: Console, cell: RehearsedCell, baseline: RehearsedCell, params: Params, card: Card) -> None:
    """Print what was found of a cell."""
    table = Table(title=f"{cell.name}: {cell.config.strategy} on {cell.config.world_size} ({LABEL})")
    table.add_column("most memory of a rank")
    table.add_column("GiB", justify="right")
    for kind in KINDS:
        table.add_row(kind, _format_gib(cell.step.peak_bytes[kind] / GIB))
    table.add_row("all together", _format_gib(cell.step.total_bytes / GIB), end_section=True)
    table.add_row(f"with {IN_PIECES:.0%} in pieces and {GIB_PER_CONTEXT:g} of CUDA", _format_gib(cell.fit.needed_gib))
    table.add_row("the card has", _format_gib(card.memory_gib))
    console.print(table)
    console.print(_describe(cell, baseline, params, card), soft_wrap=True, highlight=False, markup=False)


def tell_all_cells(
    console: Console, cells: Sequence[RehearsedCell], params: Params, card: Card, *, num_cards: int
) -> None:
    """Print the cells below each other, the first one as what the others are held against."""
    table = Table(title=f"{num_cards} x {card.name} ({LABEL})")
    table.add_column("cell")
    table.add_column(f"GiB of {_format_gib(card.memory_gib)}", justify="right")
    table.add_column("fits")
    table.add_column(f"{read_unit(params.workload)}s per second", justify="right")
    table.add_column("times as fast", justify="right")
    for cell in cells:
        speed = model_tokens_per_second(cell.load, card) if cell.load.is_modelled else None
        ratio = model_speedup(cell.load, cells[0].load, card) if speed is not None and cell is not cells[0] else None
        table.add_row(
            cell.name,
            _format_gib(cell.fit.needed_gib),
            "no" if cell.fit.missing_gib or cell.num_missing_cards else "yes",
            format_optional(speed, _format_range),
            format_optional(ratio, _format_range),
        )
    console.print(table)
    if not params.train.adapter:
        # The last one stands beside a partial one.
        number, count = len(params.checkpoint_names), params.train.count_bytes_kept
        one, kept = (max(cell.step.num_parameters for cell in cells) * count(num) / GIB for num in (1, number))
        console.print(
            f"On the disk, with train.keep {params.train.keep}: a checkpoint of {_format_gib(one)} GiB, after "
            f"{format_plural(number, 'segment')} of each cell {_format_gib(len(cells) * kept + one)} GiB in all with "
            f"one that is being written ({LABEL}).",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip


def explain_misfit(cell: RehearsedCell, *, num_cards: int, card: Card) -> str | None:
    """Return why a cell does not fit on the cards; None if it does."""
    if cell.num_missing_cards:
        return f"needs {format_plural(cell.num_missing_cards, 'card')} more than {num_cards} x {card.name}"
    if not cell.fit.missing_gib:
        return None
    return (
        f"does not fit on {num_cards} x {card.name} by rehearsal: {_format_gib(cell.fit.needed_gib)} GiB are needed, "
        f"{_format_gib(card.memory_gib)} are there"
    )


def tell_left_out(console: Console, left_out: Mapping[str, str]) -> None:
    """Print which cells were left out, and why."""
    said = [f"left out: {name}: {reason}" for name, reason in left_out.items()] or ["every cell fits; none is left out"]
    console.print("\n".join(said), soft_wrap=True, highlight=False, markup=False)


def tell_what_is_assumed(console: Console, card: Card, assumed: Sequence[str]) -> None:
    """Print where the figures come from."""
    said = [
        f"All of it is {LABEL}: {ASSUMED}; compiled layers are taken for those that are not.",
        f"{card.name}: memory ({card.memory_source}), {card.gb_per_second:g} GB/s ({card.bandwidth_source}), link "
        f"{card.link_gb_per_second or NOT_AVAILABLE} GB/s ({card.link_source}).",
    ]
    console.print(" ".join([*said, *assumed]), soft_wrap=True, highlight=False, markup=False)


def _describe(cell: RehearsedCell, baseline: RehearsedCell, params: Params, card: Card) -> str:
    return " ".join((*_describe_fit(cell), *_describe_record(cell), *_describe_speed(cell, baseline, params, card)))


def _describe_record(cell: RehearsedCell) -> Sequence[str]:
    """Return how far off the rehearsal is, where the cell was trained on such a card."""
    if cell.recorded_gib is None:
        return []
    off = cell.step.total_bytes / GIB / cell.recorded_gib - 1
    return [
        f"Its training on such a card recorded {_format_gib(cell.recorded_gib)} GiB allocated: the rehearsal says "
        f"{off:+.1%}."
    ]


def _describe_fit(cell: RehearsedCell) -> Sequence[str]:
    said = []
    if cell.num_missing_cards:
        said.append(f"{cell.name} needs {format_plural(cell.num_missing_cards, 'card')} more.")
    if not cell.fit.missing_gib:
        return [*said, f"{cell.name} fits."]
    said.append(f"{cell.name} does not fit: {_format_gib(cell.fit.missing_gib)} GiB are missing.")
    if cell.remedies is None:
        return said
    if cell.remedies:
        return [*said, f"It fits with any of: {'; '.join(cell.remedies)}."]
    return [*said, "No smaller micro-batch, checkpointing of layers or other strategy makes it fit."]


def _describe_speed(cell: RehearsedCell, baseline: RehearsedCell, params: Params, card: Card) -> Sequence[str]:
    speed, unit = model_tokens_per_second(cell.load, card), read_unit(params.workload)
    if not cell.load.is_modelled:
        return ["How fast is not said: how long its stages wait for each other is not modelled."]
    if speed is None:
        return [f"How fast is not said: the card's peak at {cell.config.precision} or its link is not known."]
    batch, rows = params.train.global_batch_size, [part.end - part.start for part in params.ranges]
    num_steps = params.train.epochs * sum(-(-number // batch) for number in rows)
    least, most = (timedelta(seconds=round(num_steps * cell.load.tokens / per)) for per in (speed.high, speed.low))
    said = [f"{_format_range(speed)} {unit}s per second, {least} to {most} (h:min:s) for {num_steps:,} steps"]
    if cell is not baseline and (ratio := model_speedup(cell.load, baseline.load, card)) is not None:
        said.append(f"{_format_range(ratio)} times as fast as {baseline.name}")
    price = params.cost.price_per_gpu_hour
    if price is not None:
        dollars = [price * cell.config.world_size / 3600 / per_second * 1e6 for per_second in (speed.high, speed.low)]
        said.append(f"{format_usd(dollars[0])} to {format_usd(dollars[1])} per million {unit}s")
    return [f"{', '.join(said)} ({LABEL})."]


def _format_range(values: Range) -> str:
    return f"{format_three_digits(values.low)} to {format_three_digits(values.high)}"


def _format_gib(value: float) -> str:
    return f"{value:.2f}"
