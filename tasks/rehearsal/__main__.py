"""`python -m tasks.rehearsal "2x H100-80"`: will every cell of params.yaml fit on such cards, and how fast would it be?

Needs no GPU. Exit codes: 0 every cell fits; 4 one does not; 2 for what cannot be rehearsed. With --leave-out cells that
do not fit, or cannot be rehearsed, are moved to `left_out` in params.yaml; 4 only if none is left.
"""

import argparse
import os
from pathlib import Path

from tasks.params import Params, load_params
from tasks.params.editing import find_refused, move_out
from tasks.params.train import AUTO
from tasks.process.failure import ConfigurationError, ResourceError, exit_with_one_line
from tasks.rehearsal.cards import Card, parse_gpu
from tasks.rehearsal.inputs import Inputs, gather_inputs


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
    # Before torch is imported: a GPU that is there after all has no part in it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from rich.console import Console

    from tasks.rehearsal.cell import RehearsedCell, rehearse_cell
    from tasks.rehearsal.telling import explain_misfit, tell_all_cells, tell_cell, tell_left_out, tell_what_is_assumed
    from training.process.failure import UnfitModelError

    console, unfit, told = Console(), dict[str, str](), list[RehearsedCell]()
    with gather_inputs(params) as inputs:
        if params.train.micro_batch_size == AUTO:
            params = _settle_for_card(params, inputs, card, leaves_out=arguments.leave_out)
            console.print(f"train.micro_batch_size: auto: {params.train.micro_batch_size}")
        for name in params.cells:
            try:
                found = rehearse_cell(
                    name, params, inputs, card=card, num_cards=num_cards, seeks_remedies=not arguments.leave_out
                )
            except UnfitModelError as error:
                if not arguments.leave_out:
                    raise ConfigurationError(f"cells.{name}: {error}") from None
                unfit[name] = str(error)
                continue
            told.append(found)
            tell_cell(console, found, told[0], params, card)
            if (why := explain_misfit(found, num_cards=num_cards, card=card)) is not None:
                unfit[name] = why
        if len(told) > 1:
            tell_all_cells(console, told, params, card, num_cards=num_cards)
        tell_what_is_assumed(console, card, inputs.assumed)
    if arguments.leave_out and len(unfit) < len(params.cells):
        if unfit:
            move_out(arguments.params, unfit)
        tell_left_out(console, {**left_out, **unfit})
    elif unfit:
        raise ResourceError(
            f"{', '.join(unfit)}: would not fit on {num_cards} x {card.name} (modelled, not measured); needed: one of "
            "the changes above, or other cards"
        )


def _settle_for_card(params: Params, inputs: Inputs, card: Card, *, leaves_out: bool) -> Params:
    """Return the comparison with the largest micro-batch with which every cell fits on such cards."""
    from tasks.rehearsal.largest import find_largest, replace_micro_batch

    configs = {cell: inputs.make_config(params, cell) for cell in params.cells}
    rooms = dict.fromkeys(configs, card.memory_gib)
    size = find_largest(params, configs, rooms, capability=card.capability, leaves_out=leaves_out)
    return replace_micro_batch(params, size)


if __name__ == "__main__":
    exit_with_one_line(_main, name="rehearse")
