"""The final figures that a tracker is told, and its tables: no name says proven of what is not."""

from collections.abc import Iterator, Mapping
from typing import Any

Rows = list[dict[str, Any]]
"""A table: every row has the same columns."""
Figures = dict[str | None, dict[str, float]]
"""The final figures of each cell's run, by name, and under None of the comparison's."""

_COMPARING = ("speedup", "efficiency", "karp_flatt")
"""Words in the names of figures that compare a cell with the baseline, of which gates decide what is left."""
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
        result = {**cell, **cell.get("whole", {}), **_collect_measured_figures(results, cell)}
        named = _name_by_standing(result, cell["standing"]["state"])
        figures[cell["cell"]] = {f"final/{key}": value for key, value in named if isinstance(value, float)}
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


def _name_by_standing(results: Mapping[str, Any], state: str) -> Iterator[tuple[str, Any]]:
    """Yield name -> value of all that may be shown of a cell in this state."""
    for key, value in results.items():
        is_comparing = any(word in key for word in _COMPARING)
        if not is_comparing or state == "proven":
            yield key, value
        elif state == "unproven":
            yield f"unproven_{key}", value


def _collect_measured_figures(results: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of the stage `measure` of one cell; none where it did not run."""
    arms = (results.get("measurement") or {}).get("arms", [])
    arm = next((arm for arm in arms if arm["cell"] == cell["cell"] and not arm["is_wrapped_baseline"]), None)
    if arm is None:
        return {}
    figures = {
        "step_seconds": arm["step_seconds"]["value"],
        **{f"{name}_of_whole_training": cell["whole"][name] for name in ("speedup", *_RATES)},
        **{name: arm[name] for name in (*_RATES, "mfu", "gpu_utilisation", "gpu_watts", "joules_per_token")},
    }
    if (speedup := cell["measured_speedup"]) is not None:
        figures |= {"speedup": speedup["value"], "speedup_low": speedup["low"], "speedup_high": speedup["high"]}
        figures["parallel_efficiency"] = cell["measured_efficiency"]["value"]
    return figures


def make_tables(results: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the tables that stand in the comparison's run: name -> rows, each of the same columns.

    A figure that is withheld, or that nobody measured, is None.
    """
    figures = collect_final_figures(results)
    names = sorted({key for cell, figure in figures.items() if cell is not None for key in figure})
    epochs = [
        {"cell": cell["cell"], **dict(_name_by_standing(epoch, cell["standing"]["state"]))}
        for cell in results["cells"]
        for epoch in cell["epochs"]
    ]
    columns = list(dict.fromkeys(name for epoch in epochs for name in epoch))
    return {
        "gates": [
            {"name": gate["name"], **{key: finding[key] for key in ("cell", "verdict", "compared")}}
            for gate in results["gates"]
            for finding in gate["findings"]
        ],
        "cells": [
            {
                "cell": cell["cell"],
                "world_size": cell["world_size"],
                "state": cell["standing"]["state"],
                **{key.removeprefix("final/"): figures[cell["cell"]].get(key) for key in names},
            }
            for cell in results["cells"]
        ],
        "epochs": [{name: epoch.get(name) for name in columns} for epoch in epochs],
    }
