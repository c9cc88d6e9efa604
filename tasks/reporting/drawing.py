"""Charts as SVG: one palette for light and dark, text that stays text, the same bytes for the same results."""

import html
import json
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.reporting.render import ShownChart
from tasks.reporting.results import HeldoutCurve, LossCurve, Results
from training.registry import import_file

Axes: TypeAlias = Any
"""matplotlib's, which is imported only to draw."""
_CHARTS = Path(__file__).with_name("charts")
_STYLE = _CHARTS.with_suffix(".mplstyle")
_WIDTH_INCHES, _HEIGHT_INCHES, _WITHHELD_INCHES = 4.7, 3.2, 2.0
_DPI = 72.0
_TITLE_LETTERS = 52
"""As many are in a line of a title."""
_MOST_NAMES = 12
_MOST_HOVER_POINTS = 80
_HOVER = "hover-"
"""Begins the id that matplotlib writes for an artist with hover texts, which follow as JSON in hexadecimal digits."""

INK, MUTED = "#1a1f26", "#59636e"
SERIES = ("#0072b2", "#d55e00", "#00875f", "#a8437f", "#6b5b00", "#4a4f57")
"""Okabe and Ito's colours, told apart with every kind of colour vision; deepened for a light ground."""
_STYLESHEET = (
    '<style data-standalone="">text { font-family: system-ui, sans-serif !important; } '
    "@media (prefers-color-scheme: dark) { svg { background: #15191f; } "
    "svg > g { filter: invert(1) hue-rotate(180deg); } }</style>"
)
"""On a dark ground light and dark change places and hues stay; style.css says so of a chart on a page."""
_BESIDE = [("left", 8, 4), ("left", 8, -12), ("right", -8, 4), ("right", -8, -12)]
"""Where a name may stand: which of its ends is how many points right of and above its point."""
_POINT_PIXELS = 4
_LINES = ["-", (0, (4, 2)), (0, (1, 1.5)), "-."]


class Chart(Protocol):
    """What a file of charts/ has to offer; its name is the chart's."""

    TITLE: str
    """Heading, with the unit."""
    POSITION: int
    """Charts stand in the order of their positions."""
    NEEDS_SPEEDUP: bool
    """True if nothing is drawn while no cell's speedup is given; that of a single cell is None where it is not."""
    SECTION: str
    """Where in the report it stands: the `slot` of a Charts block, such as speed, training or losses."""

    CAPTION: str
    """How to read it, without a figure."""

    def is_shown(self, results: Results) -> bool:
        """Return whether there is anything to draw; a chart without is left out."""

    def describe_chart(self, results: Results) -> str:
        """Return in words the figures that the chart shows, for who does not see it."""

    def draw(self, results: Results, axes: Axes) -> None:
        """Draw the results; both axes get a label with a unit."""


def is_always_shown(results: Results) -> bool:
    """Return True: every comparison has the figures of the chart."""
    return True


def select_charts(results: Results) -> dict[str, Chart]:
    """Return name -> chart for those that have something to show, in the order of the report."""
    return {name: chart for name, chart in find_charts().items() if chart.is_shown(results)}


def find_charts() -> dict[str, Chart]:
    """Return name -> chart for every file of charts/, in the order of the report."""
    names = [file.stem for file in _CHARTS.glob("*.py") if not file.stem.startswith("_")]
    charts = {name: cast(Chart, import_file("tasks.reporting.charts", name)) for name in names}
    return dict(sorted(charts.items(), key=lambda item: (item[1].POSITION, item[0])))


def select_color(number: int) -> str:
    """Return the colour of the cell at this place (0-based)."""
    return SERIES[number % len(SERIES)]


def select_dashes(number: int) -> Any:
    """Return the dash pattern of the cell at this place (0-based), so that no line is told by its colour alone."""
    return _LINES[number % len(_LINES)]


def add_legend(axes: Axes, *, columns: int = 4) -> None:
    """Name the cells below the chart, where they cover nothing; of many cells the first few."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles[:_MOST_NAMES], labels[:_MOST_NAMES], loc="outside lower center", ncols=columns, columnspacing=1.2,
        handletextpad=0.5,
    )  # fmt: skip


def add_hover(artist: Any, *texts: str) -> None:
    """Let a reader who points at the artist see a text: one for all of it, or one for each of its points in order."""
    artist.set_gid(_HOVER + json.dumps(texts).encode().hex())


def add_hover_points(axes: Axes, xs: Sequence[float], ys: Sequence[float], texts: Sequence[str]) -> None:
    """Let a reader who points at a line see the texts of its points; of many points of some, evenly spread."""
    every = max(1, math.ceil(len(xs) / _MOST_HOVER_POINTS))
    (points,) = axes.plot(xs[::every], ys[::every], linestyle="none", marker="o", markersize=8, color=INK, alpha=0)
    add_hover(points, *texts[::every])


def name_points(axes: Axes, points: Sequence[tuple[str, float, Estimate]]) -> None:
    """Write each name beside its (name, x, interval of y), where it lies on no interval and no other name if it can.

    To be called last: what else is on the chart decides where its points are.
    """
    from matplotlib.transforms import Bbox

    axes.get_figure(root=True).draw_without_rendering()
    ends = [axes.transData.transform([(x, span.low), (x, span.high)]) for _, x, span in points]
    taken = [Bbox([low - _POINT_PIXELS, high + _POINT_PIXELS]) for low, high in ends]
    for name, x, span in points:
        note = axes.annotate(name, (x, span.value), xytext=(0, 0), textcoords="offset points", fontsize=9)

        def count_covered(place: tuple[str, float, float], note: Any = note) -> int:
            note.set(ha=place[0], position=place[1:])
            return sum(note.get_window_extent().overlaps(other) for other in taken)

        count_covered(min(_BESIDE, key=count_covered))
        taken.append(note.get_window_extent())


def draw_losses(
    axes: Axes, results: Results, curves: Sequence[LossCurve | HeldoutCurve], *, what: str, marker: str = ""
) -> None:
    """Draw a line per cell, its points marked if asked; `what` the losses are is said at the axis.

    The first cell's is broad: others may lie on it.
    """
    for curve in curves:
        number = [cell.cell for cell in results.cells].index(curve.cell)
        axes.plot(
            curve.steps, curve.losses, color=select_color(number), linestyle=select_dashes(number), marker=marker,
            linewidth=1.3 if number else 3.2, alpha=1 if number else 0.55, markersize=4, label=shorten(curve.cell),
        )  # fmt: skip
        texts = [f"{curve.cell}, step {step}: {loss:.4f}" for step, loss in zip(curve.steps, curve.losses, strict=True)]
        add_hover_points(axes, curve.steps, curve.losses, texts)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"{what} ({results.loss_unit})")
    axes.margins(x=0.02)
    axes.grid()
    add_legend(axes)


def set_height(axes: Axes, inches: float) -> None:
    """Make the chart higher or lower than the others."""
    axes.get_figure(root=True).set_figheight(inches)


def shorten(name: str) -> str:
    """Return the name, cut in the middle if it is too long for an axis."""
    return name if len(name) <= 16 else f"{name[:8]}…{name[-7:]}"


def show_chart(name: str, chart: Chart, results: Results) -> ShownChart:
    """Return the chart for a document: how to read it and its figures in words, or why it shows nothing."""
    if _is_withheld(chart, results):
        return ShownChart(name, chart.TITLE, f"{_explain_withheld(results)}.")
    doubt = _describe_doubt(chart, results)
    caption = f"{chart.CAPTION} {doubt[0].upper()}{doubt[1:]}." if doubt else chart.CAPTION
    return ShownChart(name, chart.TITLE, caption, chart.describe_chart(results))


def draw_svg(name: str, chart: Chart, results: Results) -> str:
    """Return the chart as an SVG file that follows the reader's light or dark setting."""
    import io  # matplotlib takes a second to import: only when a chart is really drawn

    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": name}, _STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DPI, layout="constrained")
        axes = figure.subplots()
        lines = [chart.TITLE, _describe_doubt(chart, results)]
        axes.set_title("\n".join(part for line in lines for part in textwrap.wrap(line, _TITLE_LETTERS)))
        if _is_withheld(chart, results):
            axes.set_axis_off()
            set_height(axes, _WITHHELD_INCHES)
            text = "\n".join(textwrap.wrap(_explain_withheld(results), 46)[:6])
            box = {"boxstyle": "round,pad=1.2", "facecolor": "none", "edgecolor": MUTED, "linestyle": (0, (4, 3))}
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", bbox=box)
        else:
            chart.draw(results, axes)
        file = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    svg = _insert_titles(file.getvalue().partition("<svg")[2])
    svg = re.sub(r'<metadata>.*?</metadata>|<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    # No other chart on the page has these ids.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg).replace("xlink:", "")
    head, _, rest = svg.partition(">")
    shown = show_chart(name, chart, results)
    title, words = (html.escape(text, quote=False) for text in (shown.title, shown.alternative))
    description = f"<title>{title}</title><desc>{words}</desc>"
    return wording.replace_unprintable(f'<svg{head} role="img">{_STYLESHEET}{description}{rest}')


def inline(svg: str) -> str:
    """Return the SVG for use inside a page that sets fonts and ground and names the chart itself."""
    svg = re.sub(r"<style data-standalone.*?</style><title>.*?</title><desc>.*?</desc>", "", svg, flags=re.DOTALL)
    # By itself it is as large as it was drawn; on the page as wide as there is room.
    head, _, rest = svg.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f"{head}>{rest}".replace(' role="img"', ' aria-hidden="true" focusable="false"', 1)


def _is_withheld(chart: Chart, results: Results) -> bool:
    return chart.NEEDS_SPEEDUP and not results.answers


def _describe_doubt(chart: Chart, results: Results) -> str:
    """Return of which cells a chart of speedups shows what is not proven: it may be looked at without the report."""
    cells = [shorten(cell.cell) for cell in results.cells[1:] if cell.standing.state == "unproven"]
    return f"unproven: {wording.join_names(cells)}" if cells and chart.NEEDS_SPEEDUP else ""


def _explain_withheld(results: Results) -> str:
    if not results.is_withheld:
        return "Not measured"
    names = [f"“{name}”" for name in results.failed_gates]
    return f"Withheld: {'gate' if len(names) == 1 else 'gates'} {wording.join_names(names)} failed"


def _insert_titles(svg: str) -> str:
    """Return the SVG with the hover texts as titles, which every browser shows without a script."""
    first, *parts = re.split(rf'<g id="{_HOVER}([0-9a-f]*)">', svg)
    shown = [first]
    for hidden, rest in zip(parts[::2], parts[1::2], strict=True):
        titles = [f"<title>{html.escape(text, quote=False)}</title>" for text in json.loads(bytes.fromhex(hidden))]
        if len(titles) == 1:
            shown.append(f'<g class="hover">{titles[0]}{rest}')
            continue
        pieces = re.split(r"(<use [^>]*)/>", rest, maxsplit=len(titles))
        uses = [use.replace("<use ", '<use class="hover" ', 1) for use in pieces[1::2]]
        points = [f"{use}>{title}</use>" for use, title in zip(uses, titles, strict=False)]
        shown += ["<g>", pieces[0], *[part for pair in zip(points, pieces[2::2], strict=True) for part in pair]]
    return "".join(shown)
