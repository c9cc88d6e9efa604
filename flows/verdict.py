"""The verdict on the terminal: a line per cell, what kind of demonstration it is, and the sentence."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.process.wording import (
    BASELINE,
    NOTHING,
    format_percent,
    format_ratio,
    format_seconds,
)

_SAMPLES = 1_000


def print_verdict(results: Mapping[str, Any]) -> None:
    """Print what results.json says of the comparison, as wide as the terminal allows."""
    console = Console(highlight=False, markup=False)
    # What the speedup is of: what was timed in blocks, whatever the batch of a step, else the whole trainings.
    timed = {
        arm["cell"]: format_seconds(_SAMPLES / arm["samples_per_second"])
        for arm in (results.get("measurement") or {"arms": []})["arms"]
        if not arm["is_wrapped_baseline"]
    }
    heading = f"{_SAMPLES:,} samples" if timed else "per epoch"
    table = Table("cell", heading, "speedup", "95 % interval", "of linear", "gates say", box=None, pad_edge=False)
    for cell in results["cells"]:
        seconds = timed.get(cell["cell"], NOTHING) if timed else format_seconds(cell["seconds_per_epoch"])
        table.add_row(cell["cell"], seconds, *_tell_speedup(cell))
    if table.rows:
        console.print(table)
    for sentence in filter(None, (results.get("label"), results["verdict"])):
        # Whole where something reads it that is no terminal.
        console.print(sentence, soft_wrap=not console.is_terminal)


def _tell_speedup(cell: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return speedup, interval, share of linear and what the gates leave of them, in words."""
    state, measured = cell["standing"]["state"], cell["measured_speedup"]
    if cell["is_baseline"]:
        return BASELINE, NOTHING, NOTHING, state
    if measured is None:
        return state, NOTHING, NOTHING, state
    interval = f"{format_ratio(measured['low'])} to {format_ratio(measured['high'])}"
    return format_ratio(measured["value"]), interval, format_percent(cell["measured_efficiency"]["value"]), state
