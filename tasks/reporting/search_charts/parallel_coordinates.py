"""What every trial was trained with, and what came of it: a line per trial across one axis per parameter."""

import math
from collections.abc import Callable

from tasks.process import wording
from tasks.records.search import SearchFile, TrialRecord
from tasks.reporting.drawing import GRID, MUTED, Axes, add_legend, select_color, select_dashes

TITLE = "Parameters and what came of them"
POSITION = 20
NEEDS_SPEEDUP = False
SECTION = "rungs"
CAPTION = "A line per trial across its parameters, and at the right what came of it; the best in the end is broad."

_MARGIN = 0.04


def is_shown(found: SearchFile) -> bool:
    """Return whether there are two trials to tell apart."""
    return sum(bool(trial.losses) for trial in found.trials) > 1


def describe_chart(found: SearchFile) -> str:
    """Return what stands on the axes."""
    return (
        "Axes: learning rate (logarithmic), batch size, weight decay, steps of warm-up and "
        f"held-out loss after {wording.format_plural(found.asked.rungs[0], 'epoch')}, which all trials have; "
        f"the best in the end is {found.trials[found.best].name}."
    )


def draw(found: SearchFile, axes: Axes) -> None:
    """Draw an upright line per parameter with its least and largest value, and every trial across them."""
    trials = [(number, trial) for number, trial in enumerate(found.trials) if trial.losses]
    columns: list[tuple[str, Callable[[TrialRecord], float], Callable[[float], str]]] = [
        ("learning rate", lambda one: math.log(one.drawn.learning_rate), lambda value: f"{math.exp(value):.2g}"),
        ("batch", lambda one: one.drawn.batch_size, "{:g}".format),
        ("weight decay", lambda one: one.drawn.weight_decay, "{:.2g}".format),
        ("warm-up", lambda one: one.drawn.warmup_steps, "{:g}".format),
        ("loss", lambda one: one.losses[found.asked.rungs[0]], "{:.3f}".format),
    ]
    places = []
    for column, (_, read, show) in enumerate(columns):
        values = [read(trial) for _, trial in trials]
        low, span = min(values), (max(values) - min(values)) or 1.0
        places.append([(value - low) / span for value in values])
        axes.axvline(column, color=GRID, linewidth=1.2)
        for value, place, side in ((low, -_MARGIN, "top"), (max(values), 1 + _MARGIN, "bottom")):
            axes.text(column, place, show(value), ha="center", va=side, color=MUTED, fontsize=8.5)
    for line, (number, trial) in enumerate(trials):
        axes.plot(
            range(len(columns)), [column[line] for column in places], color=select_color(number),
            linestyle=select_dashes(number), linewidth=3.0 if number == found.best else 1.4, label=trial.name,
        )  # fmt: skip
    axes.set_xticks(range(len(columns)), [name for name, _, _ in columns])
    axes.set_yticks([])
    axes.set_ylim(-0.15, 1.15)
    axes.set_xlabel("parameter, and the loss that came of it")
    axes.set_ylabel("from least to largest (share)")
    axes.spines["left"].set_visible(False)
    add_legend(axes, columns=3)
