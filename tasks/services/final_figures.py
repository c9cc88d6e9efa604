"""The final figures that a tracker is told: no name says proven of what is not."""

from collections.abc import Mapping
from typing import Any

Figures = dict[str | None, dict[str, float]]
"""The final figures of each cell's run, by name, and under None of the comparison's."""

_RATES = ("tokens_per_second", "samples_per_second")
HEADLINE = ("final/speedup", "final/tokens_per_second")
"""Of the fastest proven cell, else of the one with most tokens per second, these stand beside the comparison too."""


def collect_final_figures(results: Mapping[str, Any]) -> Figures:
    """Return what results.json found: cell -> figures, and under None the HEADLINE and those of the base model.

    Figures are the measured numbers, counts and settings are not. What compares a cell with the baseline is absent
    where the gates withhold it, and called `unproven_...` where they leave it unproven: whoever plots one figure of
    many runs sees no other. Where the stage `measure` ran, speedup, efficiency and rates are what it found.
    """
    figures: Figures = {None: {}}
    for cell in results["cells"]:
        figure = {**cell, **cell["whole"], **_collect_measured_figures(cell)}
        figures[cell["cell"]] = {f"final/{key}": value for key, value in figure.items() if isinstance(value, float)}
    for model in results["quality"]["models"]:
        is_base = model["model"] == "base"
        for key in ("loss", "perplexity", "accuracy", "accuracy_top5", "accuracy_tokens"):
            if model.get(key) is not None:
                name = f"final/{'base_' if is_base else ''}heldout_{key}"
                figures.setdefault(None if is_base else model["model"], {})[name] = float(model[key])
    others = [figures[cell["cell"]] for cell in results["cells"][1:]]
    best = max(others, key=lambda item: [item.get(name, 0.0) for name in HEADLINE], default={})
    figures[None] |= {name: best[name] for name in HEADLINE if name in best}
    return figures


def _collect_measured_figures(cell: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of the stage `measure` of one cell; none where it did not run."""
    speed, speedup = cell["speed"], cell["speedup"]
    if speed is None:
        return {}
    figures = {
        "step_seconds": speed["step_seconds"]["value"],
        **{f"{name}_of_whole_training": cell["whole"][name] for name in _RATES},
        **{name: speed[name] for name in (*_RATES, "mfu", "gpu_utilisation", "gpu_watts", "joules_per_token")},
    }
    doubt = {"proven": "", "unproven": "unproven_"}.get(cell["standing"]["state"])
    if speedup is not None and doubt is not None:
        figures |= {
            f"{doubt}speedup": speedup["value"],
            f"{doubt}speedup_low": speedup["low"],
            f"{doubt}speedup_high": speedup["high"],
            f"{doubt}parallel_efficiency": speedup["parallel_efficiency"]["value"],
            f"{doubt}karp_flatt": speedup["karp_flatt"],
        }
    return figures
