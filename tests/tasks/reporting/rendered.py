"""Results as the report shows them."""

from tasks.reporting import drawing
from tasks.reporting.document import render_report

_DRAWN = {}


def html_of(results):
    """Return the page without its charts, which take a second to draw."""
    return render_report("html", results)


def drawn_html_of(results):
    """Return the page as it is published."""
    svgs = {name: draw_once(name, results) for name in drawing.select_charts(results)}
    return render_report("html", results, svgs)


def draw_once(name, results):
    """Return a chart of these very results, drawn when the first test asks for it: nobody changes what they hold."""
    if (name, id(results)) not in _DRAWN:
        # Beside its results: as long as these are there, no others have their number.
        _DRAWN[name, id(results)] = drawing.draw_svg(name, drawing.find_charts()[name], results), results
    return _DRAWN[name, id(results)][0]


def markdown_of(results):
    """Return report.md."""
    return render_report("markdown", results)


def line_of(results, name):
    """Return what the report says behind this question or name of a fact; "" without it."""
    return markdown_of(results).partition(f"- **{name}**")[2].partition("\n")[0].removeprefix(":").strip()


def lacks(text, *figures):
    """Return which of the figures and names a text does not say; its words stand in tests/golden/ alone."""
    return [figure for figure in figures if figure not in text]
