"""The report in a real browser: nothing is fetched, nothing is missing, nothing hangs over the edge of a phone."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from tasks.report import make_report, write_report
from tasks.reporting import drawing
from tasks.reporting.results import read_results
from tests.tasks.reporting.comparison import edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import write_measurement

pytestmark = pytest.mark.slow

SECTIONS = ["verdict", "losses", "advice", "memory", "gates", "quality", "cost", "history"]
FOLDED = ["speed", "compared"]
NUM_CHARTS = {"given": 6, "withheld": 5}
SCREEN = 900
"""Pixels from top to bottom of a laptop's window."""
VIEWS = [
    ("given", 1280, "light"), ("given", 320, "dark"), ("withheld", 1280, "light"),
]  # fmt: skip
_UNFOLD = "document.querySelectorAll('details').forEach(fold => fold.open = true)"
_COLUMNS_OF_LETTERS = """
[...document.querySelectorAll('main :is(th, td, dt, dd, li, p, a)')]
  .filter(e => e.offsetHeight && e.innerText.trim().length > 5 && e.offsetWidth < 30).map(e => e.innerText)
"""
_CUT_WORDS = """() => {
  const words = [...document.querySelectorAll('figure svg text')], outside = word => {
    const own = word.getBoundingClientRect(), all = word.closest('svg').getBoundingClientRect();
    return Math.max(all.left - own.left, own.right - all.right, all.top - own.top, own.bottom - all.bottom) > 1;
  };
  return [words.filter(outside).map(word => word.textContent), words.length];
}"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory, project):
    """The page of a clean comparison, of one that is withheld, and of two real ones."""
    pages = {}
    for name in NUM_CHARTS:
        folder = tmp_path_factory.mktemp(name)
        params = write_comparison(folder)
        write_measurement(folder)
        if name == "withheld":
            edit_segment(folder, "2proc", parameter_checksums=["aa", "bb"])
        make_report(outputs_of(folder, params), folder / "reports")
        pages[name] = folder / "reports" / "index.html"
    for name in ("busy-machine", "six-strategies"):
        folder = tmp_path_factory.mktemp(name)
        write_report(read_results(project / "docs/gallery" / name / "results.json"), folder)
        pages[name] = folder / "index.html"
    return pages


@pytest.fixture
def page(browser, reports, request):
    """A page at the asked width and colour scheme."""
    name, width, scheme = getattr(request, "param", ("given", 1280, "light"))
    context = browser.new_context(viewport={"width": width, "height": SCREEN}, color_scheme=scheme)
    page = context.new_page()
    page.goto(reports[name].as_uri())
    yield page
    context.close()


@pytest.mark.parametrize("page", VIEWS, indirect=True, ids=str)
def test_the_page_is_whole_at_every_width_and_colour_scheme(page, request):
    name, width, _ = request.node.callspec.params["page"]
    events = []
    page.on("console", lambda message: events.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("request", lambda asked: events.append(f"request: {asked.url}"))
    page.reload(wait_until="networkidle")
    assert [event for event in events if not event.startswith(("request: file://", "request: data:"))] == []
    assert len([event for event in events if event.startswith("request: file://")]) == 1
    if width == 1280:
        # The first screen of a laptop has the verdict and a chart, and the page is short.
        tops = [page.locator(place).first.bounding_box() for place in (".state", "figure svg")]
        assert all(box is not None and box["y"] < SCREEN for box in tops)
        assert page.evaluate("document.documentElement.scrollHeight") < 8000
    order = page.evaluate("[...document.querySelectorAll('main > section')].map(section => section.id)")
    assert order == [*SECTIONS, *FOLDED]
    for section in order:
        box = page.locator(f"#{section}").bounding_box()
        assert box["height"] > 50, section
    page.evaluate(_UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it hangs over the right edge"
    assert page.evaluate("(bar => bar.scrollWidth <= bar.clientWidth)(document.querySelector('nav'))")
    assert page.evaluate(_COLUMNS_OF_LETTERS) == []
    if (name, width) == ("given", 1280):
        _require_whole_words(page)
    charts = page.locator("figure svg")
    assert charts.count() == NUM_CHARTS[name]
    for place in range(charts.count()):
        box = charts.nth(place).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 70
        assert charts.nth(place).locator("path").count() > 1 or "Withheld" in charts.nth(place).inner_text()


def _require_whole_words(page):
    cut, shown = page.evaluate(_CUT_WORDS)
    assert shown > 20
    assert cut == []


@pytest.mark.parametrize("page", [("busy-machine", 1280, "light")], indirect=True, ids=str)
def test_no_word_of_a_chart_is_cut_off(page):
    page.evaluate(_UNFOLD)
    _require_whole_words(page)


def test_what_is_folded_opens_by_keyboard_by_a_link_to_it_and_in_print(page):
    hidden = page.locator("#gate-update-equivalence")
    assert not hidden.is_visible()
    page.get_by_label("Print all of it").check()
    page.emulate_media(media="print")
    assert hidden.is_visible()
    page.emulate_media(media="screen")
    page.goto(f"{page.url}#gate-update-equivalence")
    assert hidden.is_visible()
    summary = page.locator("#glossary summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("#glossary dl").is_visible()


@pytest.mark.parametrize("page", [("given", 1280, "dark")], indirect=True, ids=str)
def test_axe_finds_nothing_that_keeps_people_from_reading_the_page(page):
    page.evaluate(_UNFOLD)
    found = Axe().run(page)
    assert [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found.response["violations"]] == []


def test_figures_and_words_are_explained_and_tables_sorted_by_keyboard_alone(page):
    chart, tip = page.locator("#chart-speedup .chart"), page.locator("#tip")
    assert chart.locator("g.hover").count() == 1
    chart.locator("g.hover").last.hover()
    assert tip.inner_text() == "2proc: 1.62x (1.58 to 1.66)"
    page.mouse.move(0, 0)
    chart.focus()
    page.keyboard.press("ArrowRight")
    told = tip.inner_text()
    assert told == "2proc: 1.62x (1.58 to 1.66)"
    assert page.locator("[aria-live]").inner_text() == told
    page.keyboard.press("Escape")
    assert not tip.is_visible()

    page.locator("#losses summary").click()
    table = page.locator("#losses table")

    def read():
        return table.locator("tbody th").all_inner_texts()

    as_it_was = read()
    button = table.get_by_role("button", name="Sort by Seconds per step")
    button.press("Enter")
    assert read()[:3] == ["fixed", "data wait", "unexplained"]
    button.press("Enter")
    assert read()[:3] == ["measured", "ideal", "exposed communication"]
    assert table.locator("th[aria-sort]").count() == 1
    button.press("Enter")
    assert read() == as_it_was

    page.locator("#speed summary").first.click()
    word = page.locator("a.term", has_text="Karp-Flatt").first
    word.focus()
    page.keyboard.press("Enter")
    assert "Serial fraction" in tip.inner_text()
    assert word.get_attribute("aria-describedby") == "tip"
    tip.get_by_role("link").click()
    assert page.url.endswith("#word-karp-flatt")


def test_without_scripts_every_word_is_there_and_no_foreign_script_runs(browser, reports, tmp_path):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(reports["given"].as_uri())
    assert page.locator("button:visible").count() == 0
    assert "Serial fraction" in (page.locator("#word-karp-flatt").text_content() or "")
    assert page.locator("#chart-waterfall title").first.text_content() == "ideal: 34.0 ms"
    smuggled, script = tmp_path / "smuggled.html", "</footer><script>document.title='x'</script>"
    smuggled.write_text(reports["given"].read_text().replace("</footer>", script))
    other = browser.new_context().new_page()
    other.goto(smuggled.as_uri())
    assert other.title() != "x"
    assert other.locator(".sort").count() > 0


@pytest.mark.parametrize("page", [("six-strategies", 1280, "dark")], indirect=True, ids=str)
def test_the_page_prints_dark_on_white_and_on_one_sheet_unless_all_is_asked_for(page):
    sheets = re.compile(rb"/Type /Page\b")
    assert len(sheets.findall(page.pdf(format="A4"))) == 1
    page.get_by_label("Print all of it").check()
    assert len(sheets.findall(page.pdf(format="A4"))) > 3
    page.emulate_media(media="print", color_scheme="dark")
    colors = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    assert colors == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    text = page.locator("#chart-speedup svg text").first
    printed = tuple(int(drawing.MUTED[place : place + 2], 16) for place in (1, 3, 5))
    assert text.evaluate("element => getComputedStyle(element).fill") == f"rgb{printed}"
    figure = page.locator("#chart-speedup svg > g")
    assert figure.evaluate("element => getComputedStyle(element).filter") == "none"
    # A sheet of A4: no table hangs over.
    page.set_viewport_size({"width": 794, "height": 1123})
    assert page.evaluate("document.documentElement.scrollWidth") == 794
