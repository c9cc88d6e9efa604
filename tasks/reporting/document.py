"""The report and the model card: what their templates speak of."""

import functools
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.data.sources import row_policy
from tasks.process import wording
from tasks.records import gate
from tasks.records.facts import SliceFacts
from tasks.reporting import drawing, verdict
from tasks.reporting.charts import frontier
from tasks.reporting.history import format_time, group_comparisons
from tasks.reporting.render import TEMPLATES, Form, ShownChart, render
from tasks.reporting.results import EpochAccuracy, ModelQuality, Results


def count_left_out(parts: Sequence[SliceFacts]) -> Counter[str]:
    """Return fault -> how many rows of these slices were left out for it."""
    return sum((Counter(part.quarantined) for part in parts), Counter())


_FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        count_left_out, row_policy.describe_faults, row_policy.describe_tokenised, format_time, group_comparisons,
        frontier.find_best, frontier.is_of_cpu, frontier.list_places, verdict.count_passed_gates,
        verdict.describe_quiet_turns, verdict.divide, verdict.find_fastest_process,
        verdict.is_about_one, verdict.list_clauses, verdict.name_state,
        verdict.sort_by_merit,
    )
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {
    "QUIET_TURNS": gate.QUIET_TURNS, "BORNE_OUT": gate.BORNE_OUT, "MAX_CHARACTERS": row_policy.MAX_CHARACTERS,
}  # fmt: skip


def render_report(form: Form, results: Results, svgs: Mapping[str, str] | None = None) -> str:
    """Return the report of these results; `svgs` holds the charts of a page as drawn by drawing.draw_svg."""
    # What was stored may be of older words, and of an older rule, than the page.
    results = verdict.judge_speedups(results)
    results = results.model_copy(update={"verdict": verdict.make_verdict(results)})
    charts: dict[str, list[ShownChart]] = {}
    for name, chart in drawing.select_charts(results).items():
        charts.setdefault(chart.SECTION, []).append(drawing.show_chart(name, chart, results))
    known = tomllib.loads((TEMPLATES / "glossary.toml").read_text(encoding="utf-8"))
    replace = functools.partial(wording.replace_unit, unit=results.unit)
    return render(
        form, "report", results=results, unit=results.unit, charts=charts,
        meanings={replace(word): replace(meaning) for word, meaning in known.items()},
        svgs={name: drawing.inline(svg) for name, svg in (svgs or {}).items()}, **_FUNCTIONS, **_CONSTANTS,
    )  # fmt: skip


@dataclass(frozen=True)
class Revision:
    """The weights after one segment, where they stand in a branch of their own."""

    branch: str
    range: str
    epoch: int


def render_model_card(
    results: Results,
    *,
    cell: str,
    repo_id: str | None,
    checkpoints: Sequence[str],
    revision: Revision | None = None,
) -> str:
    """Return the card's Markdown: verdict, what was trained, quality, gates, speed and files of the published cell.

    `checkpoints` are the file names of the published ones; `revision` is what is published, if not the final weights.
    No speedup or efficiency is in it that is withheld. Its metadata is added in tasks/services/publishing.py.
    """
    return render(
        "markdown", "card", results=results, unit=results.unit, cell=cell, repo_id=repo_id or "OWNER/NAME",
        checkpoints=checkpoints, revision=revision, **_FUNCTIONS, **_CONSTANTS,
    )  # fmt: skip


def collect_metrics(results: Results, cell: str, revision: Revision | None = None) -> dict[str, float]:
    """Return what the published weights come to on the held-out rows: loss and, where there are such, the others.

    Those of a revision are there where every epoch was evaluated.
    """
    evaluated: Sequence[EpochAccuracy | ModelQuality] = [item for item in results.quality.models if item.model == cell]
    if revision is not None:
        wanted = (cell, revision.range, revision.epoch)
        evaluated = [item for item in results.quality.epochs if (item.cell, item.range, item.epoch) == wanted]
    names = ("loss", "perplexity", "accuracy", "accuracy_top5", "accuracy_tokens")
    return {name: value for item in evaluated[:1] for name in names if (value := getattr(item, name, None)) is not None}
