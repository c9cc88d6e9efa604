"""Accuracy of the cells on the held-out rows, epoch by epoch, from the base model on."""

from tasks.reporting.drawing import Axes, add_legend, draw_curve
from tasks.reporting.results import Results

TITLE = "Accuracy"
POSITION = 55
NEEDS_SPEEDUP = False
SECTION = "quality"
CAPTION = (
    "Share of the held-out rows that are put into the right class after each epoch, higher is better; curves of the "
    "same training lie on each other."
)


def is_shown(results: Results) -> bool:
    """Return True where rows have classes."""
    return bool(results.quality.epochs)


def describe_chart(results: Results) -> str:
    """Return first, best and last accuracy of every cell."""
    told = []
    for cell, shares in _list_curves(results):
        best = max(shares[1:])
        told.append(f"{cell} from {shares[0]:.3f} to {shares[-1]:.3f}, at best {best:.3f}")
    return f"{'; '.join(told)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw a line per cell."""
    from matplotlib.ticker import MaxNLocator

    for number, (cell, shares) in enumerate(_list_curves(results)):
        told = [f"{cell}, after {passes}: {100 * share:.1f} %" for passes, share in enumerate(shares)]
        draw_curve(axes, number, cell, range(len(shares)), [100 * share for share in shares], told, marker="o")
    axes.set_xlabel("passes over a range; 0: the base model")
    axes.set_ylabel("accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.grid()
    add_legend(axes)


def _list_curves(results: Results) -> list[tuple[str, list[float]]]:
    """Return each cell's accuracies, the base model's first."""
    base = next((model.accuracy for model in results.quality.models if model.model == "base"), None)
    return [
        (cell.cell, [base or 0.0, *(one.accuracy for one in results.quality.epochs if one.cell == cell.cell)])
        for cell in results.cells
    ]
