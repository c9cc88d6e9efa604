"""`python -m tasks.rehearsal "2x H100-80"`: will every cell of params.yaml fit on such cards, and how fast would it be?

Needs no GPU. Exit codes: 0 every cell fits; 4 one does not; 2 for what cannot be rehearsed.
"""

import argparse
import os
from pathlib import Path

from tasks.params import Params, load_params
from tasks.process.failure import ConfigurationError, ResourceError, exit_with_one_line
from tasks.rehearsal.cards import Card, parse_gpu


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.rehearsal", description=__doc__)
    parser.add_argument("gpu", help="such as: 2x H100-80, T4, or 4x 48GB,864GB/s,181TFLOP/s")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    arguments = parser.parse_args()
    num_cards, card = parse_gpu(arguments.gpu)
    params = load_params(arguments.params, looks_at_data=False)
    _require_precision(params, card)
    # Before torch is imported: a GPU that is there after all has no part in it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from rich.console import Console

    from tasks.rehearsal.cell import rehearse_cell
    from tasks.rehearsal.inputs import gather_inputs
    from tasks.rehearsal.telling import tell_cell, tell_what_is_assumed
    from training.process.failure import UnfitModelError

    console, unfit, baseline = Console(), [], None
    with gather_inputs(params) as inputs:
        for name in params.cells:
            try:
                found = rehearse_cell(name, params, inputs, card=card, num_cards=num_cards)
            except UnfitModelError as error:
                raise ConfigurationError(f"cells.{name}: {error}") from None
            baseline = baseline or found
            tell_cell(console, found, baseline, params, card)
            if found.fit.missing_gib or found.num_missing_cards:
                unfit.append(name)
        tell_what_is_assumed(console, card, are_rows_assumed=inputs.are_rows_assumed)
    if unfit:
        raise ResourceError(
            f"{', '.join(unfit)}: would not fit on {num_cards} x {card.name} (modelled, not measured); needed: one of "
            "the changes above, or other cards"
        )


def _require_precision(params: Params, card: Card) -> None:
    """Raise ConfigurationError for what the card would have to emulate."""
    if params.train.precision == "bf16" and card.capability < (8, 0) and not params.train.emulated_bf16:
        raise ConfigurationError(
            f"train.precision: got bf16, which {card.name} emulates and is slow at; allowed: fp16, or "
            "train.emulated_bf16: true"
        )


if __name__ == "__main__":
    exit_with_one_line(_main, name="rehearse")
