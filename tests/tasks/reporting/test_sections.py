"""The one list of sections and the two renderers: what a section says stands in both, as nothing but text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from markdown_it import MarkdownIt

from tasks.reporting import document as report
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
from tasks.reporting.document import SECTIONS, make_document
from tasks.reporting.drawing import select_charts
from tasks.reporting.html import render_html
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results
from tests.tasks.reporting.hostile import NAMES, TEXT
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import html_of, markdown_of

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


def test_every_file_of_the_folder_is_a_section_and_each_stands_once(clean_results: Results) -> None:
    folder = Path(report.__file__).with_name("sections")
    names = {file.stem for file in folder.glob("*.py") if file.stem != "__init__"}
    assert sorted(file.__name__.rpartition(".")[2] for file in SECTIONS) == sorted(names)
    anchors = [section.anchor for section in make_document(clean_results).sections]
    assert anchors == [file.__name__.rpartition(".")[2].replace("_", "-") for file in SECTIONS]


def test_a_new_section_is_one_file_and_its_name_in_the_list(
    clean_results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_blocks(results: Results) -> list[Block]:
        return [Text(f"It compares {len(results.cells)} cells.")]

    added: Any = SimpleNamespace(__name__="a.new_one", TITLE="Something new", make_blocks=make_blocks)
    monkeypatch.setattr(report, "SECTIONS", (*SECTIONS, added))
    assert "## Something new\n\nIt compares 2 cells.\n" in markdown_of(clean_results)
    page = Page(html_of(clean_results))
    assert "Something new It compares 2 cells." in page.text
    assert {"new-one", "new-one-heading"} < {element.attributes.get("id") for element in page.elements}
    assert "#new-one" in [element.attributes["href"] for element in page.all("a")]


@pytest.mark.parametrize("name", ["clean", "withheld", "measured", "withheld_measured"])
def test_every_chart_that_has_something_to_show_has_its_place(name: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(f"{name}_results")
    blocks = [block for section in make_document(results).sections for block in list_blocks(section.blocks)]
    placed = [chart.name for block in blocks if isinstance(block, Charts) for chart in block.charts]
    assert sorted(placed) == sorted(select_charts(results))


def test_what_stands_in_results_alone_makes_the_same_report(measured_results: Results) -> None:
    again = Results.model_validate_json(measured_results.model_dump_json())
    assert make_document(again) == make_document(measured_results)


def test_a_heading_that_no_word_explains_is_plain_and_one_that_a_word_explains_leads_to_it() -> None:
    table = Table("Title", ["Known", "4 of them", "Unknown"], [["a", "b", "c"]], words={"4 of them": "N of them"})
    page, _ = render_both([Terms({"Known": "It is known.", "N of them": "Some."}), table])
    linked = [
        (link.attributes["href"], link.attributes["title"]) for link in page.all("a") if "title" in link.attributes
    ]
    assert linked == [("#word-known", "It is known."), ("#word-n-of-them", "Some.")]
    assert "Known 4 of them Unknown a b c" in page.text


def test_a_chart_without_a_drawing_is_left_out_of_the_page() -> None:
    drawn, missing = ShownChart("drawn", "Drawn", "a line"), ShownChart("missing", "Missing", "nothing")
    page, markdown = render_both([Charts("place", [drawn, missing])])
    assert [figure.attributes["id"] for figure in page.all("figure")] == ["chart-drawn"]
    assert markdown.endswith("- [Drawn](charts/drawn.svg): a line\n- [Missing](charts/missing.svg): nothing\n")


def test_the_optimizer_is_told_with_what_is_not_usual_about_it(clean_results: Results) -> None:
    facts = clean_results.comparison
    unusual = {"adam_beta2": 0.95, "schedule": "cosine", "schedule_floor": 0.1, "learning_rate": 1e-6}
    for train, words in (
        ({}, "AdamW, learning rate 0.002 (linear)"),
        (unusual, "AdamW with betas 0.9 and 0.95, learning rate 1e-06 (cosine to 10 % of it)"),
        ({"optimizer": "sgd", "adam_beta1": 0.5, "momentum": 0.5}, "SGD with momentum 0.5, learning rate 0.002"),
        ({"schedule": "constant", "schedule_floor": 0.1}, "learning rate 0.002 (constant)"),
    ):
        changed = facts.model_copy(update={"train": facts.train | train})
        assert words in " ".join(markdown_of(clean_results.model_copy(update={"comparison": changed})).split())
