"""Results as the report shows them."""

from tasks.reporting import drawing
from tasks.reporting.document import render_report


def html_of(results):
    """Return the page without its charts, which take a second to draw."""
    return render_report("html", results)


def drawn_html_of(results):
    """Return the page as it is published."""
    svgs = {name: draw(name, results) for name in drawing.select_charts(results)}
    return render_report("html", results, svgs)


def draw(name, results):
    """Return a chart of these results."""
    return drawing.draw_svg(name, drawing.find_charts()[name], results)


def markdown_of(results):
    """Return report.md."""
    return render_report("markdown", results)


def line_of(results, name):
    """Return what the report says behind this question or name of a fact; "" without it."""
    return markdown_of(results).partition(f"- **{name}**")[2].partition("\n")[0].removeprefix(":").strip()


def lacks(text, *figures):
    """Return which of the figures and names a text does not say; its words stand in tests/golden/ alone."""
    return [figure for figure in figures if figure not in text]
