"""Training loss of the cells laid over each other."""

from tasks.process import wording
from tasks.reporting.drawing import Axes, draw_losses
from tasks.reporting.results import LossCurve, Results

TITLE = "Training loss"
POSITION = 50
NEEDS_SPEEDUP = False
SECTION = "quality"
CAPTION = "Loss per optimizer step, lower is better; curves of the same training lie on each other."


def is_shown(results: Results) -> bool:
    """Return whether a cell has learned from a target."""
    return bool(_list_curves(results))


def describe_chart(results: Results) -> str:
    """Return first and last loss of every cell, and how many steps a point stands for."""
    text = "; ".join(
        f"{curve.cell} from {curve.losses[0]:.3f} to {curve.losses[-1]:.3f} in "
        f"{wording.format_plural(curve.steps[-1], 'step')}"
        for curve in _list_curves(results)
    )
    per_point = results.loss_curves[0].steps_per_point
    mean = f" Each point is the mean of {per_point} steps." if per_point > 1 else ""
    return f"{text}.{mean}"


def draw(results: Results, axes: Axes) -> None:
    """Draw a line per cell."""
    draw_losses(axes, results, _list_curves(results), what="loss")


def _list_curves(results: Results) -> list[LossCurve]:
    return [curve for curve in results.loss_curves if curve.losses]
