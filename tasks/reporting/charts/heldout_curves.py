"""Loss on the held-out rows while the cells trained, laid over each other."""

from tasks.process import wording
from tasks.reporting.drawing import Axes, draw_losses
from tasks.reporting.results import HeldoutCurve, Results

TITLE = "Held-out loss"
POSITION = 52
NEEDS_SPEEDUP = False
SECTION = "quality"
CAPTION = (
    "Loss on rows that none is trained on, lower is better; where it rises while the training loss falls, rows are "
    "learned by heart."
)


def is_shown(results: Results) -> bool:
    """Return True where a cell was looked at while it trained, or after each epoch."""
    return bool(_list_curves(results))


def describe_chart(results: Results) -> str:
    """Return first, lowest and last held-out loss of every cell."""
    return "; ".join(
        f"{curve.cell} from {curve.losses[0]:.3f} to {curve.losses[-1]:.3f}, at lowest {min(curve.losses):.3f} after "
        f"step {wording.format_count(curve.steps[curve.losses.index(min(curve.losses))])}"
        for curve in _list_curves(results)
    )


def draw(results: Results, axes: Axes) -> None:
    """Draw a line per cell."""
    draw_losses(axes, results, _list_curves(results), what="held-out loss", marker="o")


def _list_curves(results: Results) -> list[HeldoutCurve]:
    """Return every cell's losses in mid-training, else those after each epoch, where rows have classes."""
    quality = results.quality
    if curves := [curve for curve in quality.heldout_curves if curve.losses]:
        return curves
    epochs = {cell.cell: [epoch for epoch in quality.epochs if epoch.cell == cell.cell] for cell in results.cells}
    return [
        HeldoutCurve(cell=cell, steps=[result.step for result in epoch], losses=[result.loss for result in epoch])
        for cell, epoch in epochs.items()
        if epoch
    ]
