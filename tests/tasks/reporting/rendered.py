"""Results as the report shows them."""

from tasks.reporting import drawing
from tasks.reporting.document import make_document
from tasks.reporting.html import render_html
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results
from tests.tasks.reporting.page import Page


def html_of(results: Results) -> str:
    """Return the page without its charts, which take a second to draw."""
    return render_html(make_document(results), {})


def drawn_html_of(results: Results) -> str:
    """Return the page as it is published."""
    svgs = {name: drawing.draw_svg(name, chart, results) for name, chart in drawing.select_charts(results).items()}
    return render_html(make_document(results), svgs)


def page_of(results: Results) -> Page:
    """Return the page as it is published, taken apart."""
    return Page(drawn_html_of(results))


def markdown_of(results: Results) -> str:
    """Return report.md."""
    return render_markdown(make_document(results))
