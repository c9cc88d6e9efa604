"""The macros of both forms: what they are given stands in both, as nothing but text; the page needs nothing else."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from jinja2 import ChoiceLoader, DictLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tasks.reporting import render
from tasks.reporting.drawing import select_charts
from tasks.reporting.results import Results
from tests.tasks.reporting.hostile import NAMES, TEXT, hostile
from tests.tasks.reporting.rendered import drawn_html_of, markdown_of

ATTACKS = [
    TEXT, *NAMES.values(), "# no heading", "- no item", "no end #", "1. no item", "~~~ no fence", "<b> &amp;",
    "{{ 7 * 7 }}", "![i](j) a_b _c_ *d* `e`", r"\| \\",
]  # fmt: skip
EVERY_MACRO = """
{% set title, tab, summary = said, said, said %}
{{ p(said, "lead") }}
{% call section("only", said) %}
{% for role in ("", "label", "answer", "unresolved", "refusal", "notice") %}{{ p(said, role) }}{% endfor %}
{% call p() %}{{ said }}{% endcall %}
{{ heading(said) }}
{% call items() %}{{ said }}{% endcall %}
{{ tiles([(said, said, said)]) }}
{% call answers() %}{% call answer(said, "only") %}{{ said }}{% endcall %}{% endcall %}
{% call fold(said) %}{{ p(said) }}{% endcall %}
{% call facts() %}{{ fact(said, said) }}{% call fact(said) %}{{ said }}{% endcall %}{% endcall %}
{{ links([(said, "a.txt", said)]) }}
{{ table(said, [said, "other"], [[said, said]], prose=1, as_word={"other": said}) }}
{{ code(said, "text", "") }}
{{ quotes(said, [(said, said)]) }}
{% endcall %}
{% call footer() %}{{ glossary() }}{% endcall %}
"""


class Page(HTMLParser):
    """What a page consists of; a tag that is closed wrongly is an AssertionError."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data

    def list_values(self, name: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(name)) is not None]


def parse(markdown: str) -> list[Token]:
    return MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)


def read(markdown: str) -> str:
    """Return what a reader of the Markdown sees."""
    shown = ""
    for token in parse(markdown):
        shown += f" {token.content if token.type == 'fence' else ''.join(one.content for one in token.children or [])}"
    return " ".join(shown.replace("\N{WORD JOINER}", "").split())


@pytest.fixture
def every_macro(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that says `said` with every macro there is."""
    make = render._make_environment

    def overlay(form: Any) -> Any:
        found = make(form)
        return found.overlay(
            loader=ChoiceLoader([DictLoader({"every.j2": EVERY_MACRO}), found.loader or DictLoader({})])
        )

    monkeypatch.setattr(render, "_make_environment", overlay)


@pytest.mark.usefixtures("every_macro")
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_macro_says_the_same_in_both_forms_and_nothing_becomes_markup(attack: str) -> None:
    pages, texts = [], []
    for said in (attack, "harmless"):
        pages.append(Page(render.render("html", "every", said=said, meanings={said: said})))
        texts.append(render.render("markdown", "every", said=said, meanings={said: said}))
    assert " ".join(pages[0].text.split()).count(attack) == pages[1].text.count("harmless") > 20
    assert read(texts[0]).count(attack) == read(texts[1]).count("harmless") > 20
    assert [tag for tag, _ in pages[0].elements] == [tag for tag, _ in pages[1].elements]
    assert [token.type for token in parse(texts[0])] == [token.type for token in parse(texts[1])]


@pytest.mark.parametrize("text", [*NAMES.values(), "a_b _c_ *d* `e`", "x\n| y |\n# z", "![i](j) <b>", r"\| \\"])
def test_escaped_text_is_read_back_as_it_was(text: str) -> None:
    rendered = parse(f"| h |\n| --- |\n| {render.escape(text)} |")
    cell = next(token for token in rendered if token.type == "inline" and token.content != "h")
    assert {child.type for child in cell.children or []} <= {"text", "text_special"}
    assert "".join(child.content for child in cell.children or []) == " ".join(text.split())


def test_a_table_leaves_out_what_is_never_known_and_the_report_has_whole_rows(measured_results: Results) -> None:
    words: set[str] = set()
    laid = render.lay_out(["A", "B", "C"], [[1, None, None]], optional=["B"], unit="token", words=words)
    assert ([column["heading"] for column in laid["columns"]], laid["rows"], words) == (
        ["A", "C"], [["1", "n/a"]], {"A", "C"},
    )  # fmt: skip
    row: list[int] = []
    for token in parse(markdown_of(hostile(measured_results))):
        if token.type in ("tr_open", "table_open"):
            row.append(0)
        elif token.type in ("th_open", "td_open"):
            row[-1] += 1
        elif token.type == "table_close":
            assert len(set(row[1:])) == 1
            row = []


@pytest.mark.parametrize("name", ["clean", "withheld", "measured", "withheld_measured"])
def test_every_chart_that_has_something_to_show_has_its_place(name: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(f"{name}_results")
    assert sorted(re.findall(r"\(charts/(\w+)\.svg\)", markdown_of(results))) == sorted(select_charts(results))


def test_the_page_is_whole_refers_to_nothing_outside_and_runs_its_own_script_alone(measured_results: Results) -> None:
    source = drawn_html_of(measured_results)
    page = Page(source)
    ids = page.list_values("id")
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 not in levels[1:]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    targets = {target for name in ("src", "href", "action", "data", "srcset") for target in page.list_values(name)}
    assert targets - {f"#{one}" for one in ids} == {
        "data:,", "results.json", "blocks.parquet", "epochs.csv", "losses.csv", "report.md", "charts/",
    }  # fmt: skip
    outside = re.sub(r'xmlns(:xlink)?="[^"]*"|http-equiv', "", source)
    assert not re.search(r"http|@import|url\([^#]|innerHTML", outside)
    (script,) = re.findall("<script>(.*?)</script>", source, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}';" in source
    # Every column is explained.
    assert page.list_values("class").count("term") == page.list_values("scope").count("col") > 40
    assert all(len(meaning) > 10 for meaning in page.list_values("title"))
