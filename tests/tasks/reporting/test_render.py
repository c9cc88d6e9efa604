"""The macros of both forms: what they are given stands in both, as nothing but text."""

from html.parser import HTMLParser

import pytest
from jinja2 import ChoiceLoader, DictLoader
from markdown_it import MarkdownIt

from tasks.reporting import render
from tests.tasks.reporting.hostile import NAMES, TEXT
from tests.tasks.reporting.rendered import lacks, line_of

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

    def __init__(self, source):
        super().__init__()
        self.tags = []
        self.text = ""
        self._open = []
        self.feed(source)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "link", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data


def parse(markdown):
    return MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)


def read(markdown):
    """Return what a reader of the Markdown sees."""
    shown = ""
    for token in parse(markdown):
        shown += f" {token.content if token.type == 'fence' else ''.join(one.content for one in token.children or [])}"
    return " ".join(shown.replace("\N{WORD JOINER}", "").split())


@pytest.fixture
def every_macro(monkeypatch):
    """A document that says `said` with every macro there is."""
    make = render._make_environment

    def overlay(form):
        found = make(form)
        return found.overlay(
            loader=ChoiceLoader([DictLoader({"every.j2": EVERY_MACRO}), found.loader or DictLoader({})])
        )

    monkeypatch.setattr(render, "_make_environment", overlay)


@pytest.mark.usefixtures("every_macro")
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_macro_says_the_same_in_both_forms_and_nothing_becomes_markup(attack):
    pages, texts = [], []
    for said in (attack, "harmless"):
        pages.append(Page(render.render("html", "every", said=said, meanings={said: said})))
        texts.append(render.render("markdown", "every", said=said, meanings={said: said}))
    assert " ".join(pages[0].text.split()).count(attack) == pages[1].text.count("harmless") > 20
    assert read(texts[0]).count(attack) == read(texts[1]).count("harmless") > 20
    assert pages[0].tags == pages[1].tags
    assert [token.type for token in parse(texts[0])] == [token.type for token in parse(texts[1])]


def test_the_report_says_what_rows_became_and_the_classes_of_each_slice(clean_results):
    content = clean_results.model_dump(mode="json")
    content["comparison"]["ranges"][0]["class_counts"] = {"spam": 7, "ham": 1}
    content["comparison"]["dataset"]["tokenised"] = {
        "num_rows": 30, "num_tokens": 900, "unknown_share": 0.0002, "num_rows_without_target": 12, "num_equal_rows": 3,
        "before": "BOS", "behind": "EOS",
    }  # fmt: skip
    said = line_of(type(clean_results).model_validate(content), "Rows")
    assert lacks(said, "spam", "BOS", "EOS", "0.02 %", "12 rows", "0-8: ") == []
