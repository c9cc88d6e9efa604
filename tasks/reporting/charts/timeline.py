"""One step of the cell with most ranks, rank by rank: what each did when."""

from tasks.process import wording
from tasks.reporting.drawing import Axes, add_hover, add_legend, select_color, set_height
from tasks.reporting.results import Results
from tasks.reporting.timeline import CellTimeline

TITLE = "One step, rank by rank"
POSITION = 65
NEEDS_SPEEDUP = False
SECTION = "timeline"
CAPTION = (
    "What each rank of the cell with most ranks did when, in one step that was recorded after all that was timed; "
    "recording takes time of its own. Whole, for Perfetto: see the files below."
)

_KINDS = {"forward and else": 3, "backward": 0, "update": 2, "GPU": 0, "exchange": 1}
"""What is drawn, in this order, and its colour."""
_MOST_RANKS = 16
_INCHES_PER_RANK, _INCHES_AROUND = 0.32, 1.2


def is_shown(results: Results) -> bool:
    """Return whether a step was recorded."""
    return any(timeline.spans for timeline in results.timelines)


def describe_chart(results: Results) -> str:
    """Return of every rank how long it exchanged in that step."""
    item, seconds = _select(results), dict[int, float]()
    for span in sorted(item.spans, key=lambda span: span.rank):
        took = (span.end_seconds - span.start_seconds) * (span.kind == "exchange")
        seconds[span.rank] = seconds.get(span.rank, 0.0) + took
    texts = [f"rank {rank} {wording.format_duration(took)}" for rank, took in list(seconds.items())[:_MOST_RANKS]]
    whole = wording.format_duration(max(span.end_seconds for span in item.spans))
    return f"{item.cell}: {whole} as recorded; exchanging, in part beside computing: {', '.join(texts)}."


def draw(results: Results, axes: Axes) -> None:
    """Draw two rows per rank: above what it computed, below what it exchanged."""
    item = _select(results)
    ranks = sorted({span.rank for span in item.spans})[:_MOST_RANKS]
    factor, unit = (1000, "ms") if max(span.end_seconds for span in item.spans) < 1 else (1, "s")
    named: set[str] = set()
    for kind, color in _KINDS.items():
        for span in item.spans:
            if span.kind != kind or span.rank not in ranks:
                continue
            bars = axes.barh(
                span.rank + (0.22 if kind == "exchange" else -0.18), factor * (span.end_seconds - span.start_seconds),
                0.3, left=factor * span.start_seconds, color=select_color(color), label=None if kind in named else kind,
            )  # fmt: skip
            named.add(kind)
            took = wording.format_duration(span.end_seconds - span.start_seconds)
            add_hover(bars[0], f"rank {span.rank}, {kind}: {took}")
    set_height(axes, _INCHES_AROUND + _INCHES_PER_RANK * len(ranks))
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.set_ylim(max(ranks) + 0.6, min(ranks) - 0.6)
    axes.set_xlabel(f"{unit} after the first event")
    axes.set_ylabel("rank")
    axes.grid(axis="x")
    add_legend(axes, columns=2)


def _select(results: Results) -> CellTimeline:
    return max(
        (timeline for timeline in results.timelines if timeline.spans),
        key=lambda item: max(span.rank for span in item.spans),
    )
