"""Held-out loss of every trial over its epochs, rung by rung."""

from tasks.process import wording
from tasks.records.search import SearchFile
from tasks.reporting.drawing import Axes, add_legend, select_color, select_dashes

TITLE = "Held-out loss, rung by rung"
POSITION = 10
NEEDS_SPEEDUP = False
SECTION = "rungs"
CAPTION = "Loss on the held-out rows over the epochs of each trial, lower is better; the best one is broad."


def is_shown(found: SearchFile) -> bool:
    """Return True: every search has a rung."""
    return True


def describe_chart(found: SearchFile) -> str:
    """Return how many trials each rung compared, and the best loss in it."""
    told = "; ".join(
        f"{wording.format_plural(len(losses), 'trial')} after {wording.format_plural(epochs, 'epoch')}, the best "
        f"{wording.format_loss(min(losses))}"
        for epochs in found.asked.rungs
        if (losses := [trial.losses[epochs] for trial in found.trials if epochs in trial.losses])
    )
    base = wording.format_loss(found.base_loss)
    return f"On rows {found.heldout}; the base model has {base}. {told}."


def draw(found: SearchFile, axes: Axes) -> None:
    """Draw a line per trial over the rungs that it took part in, the best one broad."""
    for number, trial in enumerate(found.trials):
        axes.plot(
            [0, *trial.losses], [found.base_loss, *trial.losses.values()], color=select_color(number),
            linestyle=select_dashes(number), marker="o", markersize=4.5,
            linewidth=3.0 if number == found.best else 1.4, label=trial.name,
        )  # fmt: skip
    axes.set_xticks([0, *found.asked.rungs])
    axes.set_xlabel("epochs")
    axes.set_ylabel("held-out loss (nats per label)")
    axes.grid(axis="y")
    add_legend(axes, columns=3)
