"""`python -m tasks.rehearsal "2x H100-80"`: will every cell of params.yaml fit on such cards, and how fast would it be?

Needs no GPU. Exit codes: 0 every cell fits; 4 one does not; 2 for what cannot be rehearsed. With --leave-out cells that
do not fit, or cannot be rehearsed, are moved to `left_out` in params.yaml; 4 only if none is left.
"""

import argparse
import math
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.machine.gpu_checks import GIB_PER_CONTEXT, IN_PIECES
from tasks.params import Params, load_params
from tasks.params.choices import read_unit
from tasks.params.editing import find_refused, move_out
from tasks.params.train import AUTO
from tasks.process.failure import ConfigurationError, ResourceError, exit_with_one_line
from tasks.process.wording import (
    NOT_AVAILABLE,
    format_optional,
    format_plural,
    format_three_digits,
    format_usd,
)
from tasks.rehearsal.cards import GIB, Card, parse_gpu
from tasks.rehearsal.cell import RehearsedCell, rehearse_cell
from tasks.rehearsal.inputs import gather_inputs
from tasks.rehearsal.largest import find_largest, replace_micro_batch
from tasks.rehearsal.speed import ASSUMED, Range, model_speedup, model_tokens_per_second
from training.probing.live_memory import KINDS
from training.process.failure import UnfitModelError

LABEL = "modelled, not measured"


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.rehearsal", description=__doc__)
    parser.add_argument("gpu", help="such as: 2x H100-80, T4, or 4x 48GB,864GB/s,181TFLOP/s")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--leave-out", action="store_true", help="move what does not fit to left_out")
    arguments = parser.parse_args()
    num_cards, card = parse_gpu(arguments.gpu)
    left_out = {}
    if arguments.leave_out and (left_out := find_refused(arguments.params)):
        move_out(arguments.params, left_out)
    params = load_params(arguments.params, looks_at_data=False)
    if params.train.precision == "bf16" and card.capability < (8, 0) and not params.train.emulated_bf16:
        raise ConfigurationError(
            f"train.precision: got bf16, which {card.name} emulates and is slow at; allowed: fp16, or "
            "train.emulated_bf16: true"
        )
    # A GPU that is there after all has no part in it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    console, unfit, payload = Console(), dict[str, str](), list[RehearsedCell]()
    with gather_inputs(params) as inputs:
        if params.train.micro_batch_size == AUTO:
            configs = {cell: inputs.make_config(params, cell) for cell in params.cells}
            rooms = dict.fromkeys(configs, card.memory_gib)
            size = find_largest(params, configs, rooms, capability=card.capability, leaves_out=arguments.leave_out)
            params = replace_micro_batch(params, size)
            console.print(f"train.micro_batch_size: auto: {params.train.micro_batch_size}")
        for name in params.cells:
            try:
                result = rehearse_cell(
                    name, params, inputs, card=card, num_cards=num_cards, seeks_remedies=not arguments.leave_out
                )
            except UnfitModelError as error:
                if not arguments.leave_out:
                    raise ConfigurationError(f"cells.{name}: {error}") from None
                unfit[name] = str(error)
                continue
            payload.append(result)
            print_cell(console, result, payload[0], params, card)
            if why := explain_misfit(result, num_cards=num_cards, card=card):
                unfit[name] = why
        if len(payload) > 1:
            print_all_cells(console, payload, params, card, num_cards=num_cards)
        _print_text(
            console,
            f"All of it is {LABEL}: {ASSUMED}; compiled layers are taken for those that are not.",
            f"{card.name}: memory ({card.memory_source}), {card.gb_per_second:g} GB/s ({card.bandwidth_source}), link "
            f"{card.link_gb_per_second or NOT_AVAILABLE} GB/s ({card.link_source}).",
            *inputs.assumed,
        )
    if arguments.leave_out and len(unfit) < len(params.cells):
        if unfit:
            move_out(arguments.params, unfit)
        said = [f"left out: {name}: {reason}" for name, reason in {**left_out, **unfit}.items()]
        _print_text(console, "\n".join(said or ["every cell fits; none is left out"]))
    elif unfit:
        raise ResourceError(
            f"{', '.join(unfit)}: would not fit on {num_cards} x {card.name} (modelled, not measured); needed: one of "
            "the changes above, or other cards"
        )


def print_cell(console: Console, cell: RehearsedCell, baseline: RehearsedCell, params: Params, card: Card) -> None:
    """Print what was found of a cell."""
    table = Table(title=f"{cell.name}: {cell.config.strategy} on {cell.config.world_size} ({LABEL})")
    table.add_column("most memory of a rank")
    table.add_column("GiB", justify="right")
    rows = {kind: cell.step.peak_bytes[kind] / GIB for kind in KINDS} | {"all together": cell.step.total_bytes / GIB}
    rows[f"with {IN_PIECES:.0%} in pieces and {GIB_PER_CONTEXT:g} of CUDA"] = cell.needed_gib
    for name, gib in {**rows, "the card has": card.memory_gib}.items():
        table.add_row(name, f"{gib:.2f}", end_section=name == "all together")
    console.print(table)
    said = []
    if cell.num_missing_cards:
        said.append(f"{cell.name} needs {format_plural(cell.num_missing_cards, 'card')} more.")
    if not cell.missing_gib:
        said.append(f"{cell.name} fits.")
    else:
        said.append(f"{cell.name} does not fit: {cell.missing_gib:.2f} GiB are missing.")
        if cell.remedies:
            said.append(f"It fits with any of: {'; '.join(cell.remedies)}.")
        elif cell.remedies is not None:
            said.append("No smaller micro-batch, checkpointing of layers or other strategy makes it fit.")
    _print_text(console, *said, _describe_speed(cell, baseline, params, card))


def _print_text(console: Console, *sentences: str) -> None:
    console.print(" ".join(sentences), soft_wrap=True, highlight=False, markup=False)


def print_all_cells(
    console: Console, cells: Sequence[RehearsedCell], params: Params, card: Card, *, num_cards: int
) -> None:
    """Print the cells below each other, the first one as what the others are held against."""
    table = Table(title=f"{num_cards} x {card.name} ({LABEL})")
    headings = ("cell", f"GiB of {card.memory_gib:.2f}", "fits", f"{read_unit(params.workload)}s per second")
    for place, heading in enumerate((*headings, "times as fast")):
        table.add_column(heading, justify="right" if place in (1, 3, 4) else "left")
    for cell in cells:
        speed = model_tokens_per_second(cell.load, card)
        ratio = None if cell is cells[0] else model_speedup(cell.load, cells[0].load, card)
        shown = (format_optional(item, _format_range) for item in (speed, ratio))
        fits = "no" if cell.missing_gib or cell.num_missing_cards else "yes"
        table.add_row(cell.name, f"{cell.needed_gib:.2f}", fits, *shown)
    console.print(table)
    if not params.train.adapter:
        # The last one stands beside a partial one.
        number, count = len(params.checkpoint_names), params.train.count_bytes_kept
        item, kept = (max(cell.step.num_parameters for cell in cells) * count(num) / GIB for num in (1, number))
        _print_text(
            console,
            f"On the disk, with train.keep {params.train.keep}: a checkpoint of {item:.2f} GiB, after "
            f"{format_plural(number, 'segment')} of each cell {len(cells) * kept + item:.2f} GiB in all with "
            f"one that is being written ({LABEL}).",
        )


def explain_misfit(cell: RehearsedCell, *, num_cards: int, card: Card) -> str | None:
    """Return why a cell does not fit on the cards; None if it does."""
    if cell.num_missing_cards:
        return f"needs {format_plural(cell.num_missing_cards, 'card')} more than {num_cards} x {card.name}"
    if not cell.missing_gib:
        return None
    return (
        f"does not fit on {num_cards} x {card.name} by rehearsal: {cell.needed_gib:.2f} GiB are needed, "
        f"{card.memory_gib:.2f} are there"
    )


def _describe_speed(cell: RehearsedCell, baseline: RehearsedCell, params: Params, card: Card) -> str:
    speed, unit = model_tokens_per_second(cell.load, card), read_unit(params.workload)
    if not cell.load.is_modelled:
        return "How fast is not said: how long its stages wait for each other is not modelled."
    if speed is None:
        return f"How fast is not said: the card's peak at {cell.config.precision} or its link is not known."
    batch = params.train.global_batch_size
    num_steps = params.train.epochs * sum(-(-(part.end - part.start) // batch) for part in params.ranges)
    least, most = (timedelta(seconds=math.ceil(num_steps * cell.load.tokens / per)) for per in (speed.high, speed.low))
    said = [f"{_format_range(speed)} {unit}s per second, {least} to {most} (h:min:s) for {num_steps:,} steps"]
    if cell is not baseline and (ratio := model_speedup(cell.load, baseline.load, card)) is not None:
        said.append(f"{_format_range(ratio)} times as fast as {baseline.name}")
    if (price := params.cost.price_per_gpu_hour) is not None:
        dollars = (price * cell.config.world_size / 3600 / per * 1e6 for per in (speed.high, speed.low))
        said.append(f"{' to '.join(map(format_usd, dollars))} per million {unit}s")
    return f"{', '.join(said)} ({LABEL})."


def _format_range(values: Range) -> str:
    return f"{format_three_digits(values.low)} to {format_three_digits(values.high)}"


if __name__ == "__main__":
    exit_with_one_line(_main, name="rehearse")
