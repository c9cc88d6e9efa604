"""The one list of sections and the two renderers: what a section says stands in both, as nothing but text."""

from typing import get_args

import pytest
from markdown_it import MarkdownIt

from tasks.reporting.blocks import (
    Answers,
    Block,
    Charts,
    Code,
    Document,
    Facts,
    Fold,
    Heading,
    Items,
    KeyFigures,
    Links,
    PageSection,
    Quotes,
    ShownChart,
    Table,
    Terms,
    Text,
    list_blocks,
)
from tasks.reporting.document import make_document
from tasks.reporting.drawing import select_charts
from tasks.reporting.html import render_html
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results
from tests.tasks.reporting.hostile import NAMES, TEXT
from tests.tasks.reporting.page import Page

ATTACKS = [
    TEXT,
    *NAMES.values(),
    "# no heading",
    "- no item",
    "no end #",
    "1. no item",
    "~~~ no fence",
    "<b> &amp;",
    "{{ 7 * 7 }}",
    "![i](j) a_b _c_ *d* `e`",
    r"\| \\",
]


def make_every_kind(attack: str) -> list[Block]:
    """Return a block of every kind, each of which says the same thing."""
    return [
        *[Text(attack, role) for role in get_args(Text.__annotations__["role"])],
        Heading(attack),
        Items([attack]),
        KeyFigures([(attack, attack, attack)]),
        Answers([(attack, attack, "only")]),
        Facts([(attack, attack)]),
        Facts([(attack, attack)], anchor="one"),
        Fold(attack, [Text(attack)]),
        Links([(attack, "a.txt", attack)]),
        Terms({attack: attack}),
        Table(attack, [attack, "other"], [[attack, attack]], num_prose=1, words={"other": attack}),
        Charts("place", [ShownChart("drawn", "A chart", attack)]),
        Code(attack, "text", attack),
        Quotes(attack, [("whose", attack)]),
    ]


def render_both(blocks: list[Block]) -> tuple[Page, str]:
    found = Document("title", "tab", "summary", [], [PageSection("only", "Only", blocks)])
    return Page(render_html(found, {"drawn": "<svg></svg>"})), render_markdown(found)


def read_back(markdown: str) -> str:
    """Return what a reader of the Markdown sees."""
    shown = []
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown):
        shown += [token.content] if token.type == "fence" else [child.content for child in token.children or []]
    return " ".join(" ".join(shown).replace("\N{WORD JOINER}", "").split())


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_kind_of_block_says_the_same_in_both_renderers_and_none_becomes_markup(attack: str) -> None:
    said = " ".join(attack.split())
    blocks = make_every_kind(attack)
    assert {type(block) for block in blocks} == set(get_args(Block))
    for block in blocks:
        page, markdown = render_both([block])
        assert said in page.text, block
        assert said in read_back(markdown), block
    page, markdown = render_both(blocks)
    tags = [element.tag for element in page.elements]
    harmless, _ = render_both(make_every_kind("harmless"))
    assert tags == [element.tag for element in harmless.elements]
    kinds = [token.type for token in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)]
    _, harmless_markdown = render_both(make_every_kind("harmless"))
    assert kinds == [token.type for token in MarkdownIt("gfm-like", {"linkify": False}).parse(harmless_markdown)]


@pytest.mark.parametrize("name", ["clean", "withheld", "measured", "withheld_measured"])
def test_every_chart_that_has_something_to_show_has_its_place(name: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(f"{name}_results")
    blocks = [block for section in make_document(results).sections for block in list_blocks(section.blocks)]
    placed = [chart.name for block in blocks if isinstance(block, Charts) for chart in block.charts]
    assert sorted(placed) == sorted(select_charts(results))


def test_what_stands_in_results_alone_makes_the_same_report(measured_results: Results) -> None:
    again = Results.model_validate_json(measured_results.model_dump_json())
    assert make_document(again) == make_document(measured_results)
