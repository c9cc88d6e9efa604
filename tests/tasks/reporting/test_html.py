import base64
import hashlib
import itertools
import re

import pytest

from tasks.reporting import drawing
from tasks.reporting.results import Results
from tests.tasks.reporting.hostile import NAMES, TEXT, hostile
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import page_of, undrawn_page_of

FILES_BESIDE = ["results.json", "blocks.parquet", "epochs.csv", "losses.csv", "report.md", "charts/"]


@pytest.fixture(scope="module")
def page(clean_results: Results) -> Page:
    return page_of(clean_results)


def test_the_sections_stand_in_the_order_in_which_the_report_answers(page: Page, clean_results: Results) -> None:
    order = [
        "label",
        "verdict",
        "losses",
        "advice",
        "memory",
        "gates",
        "trust",
        "quality",
        "cost",
        "history",
    ]
    order += ["speed", "compared", "measured", "provenance", "glossary"]
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert [name for name in ids if name in order] == order
    assert clean_results.label is not None
    assert clean_results.label in page.text
    answer, more = (f"{part}." for part in clean_results.verdict.rstrip(".").split("; ", 1))
    assert page.text.index(clean_results.label) < page.text.index(answer) < page.text.index(more[1:])


def test_the_page_refers_to_nothing_outside_itself(page: Page) -> None:
    ids = {element.attributes["id"] for element in page.elements if "id" in element.attributes}
    for element in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            target = element.attributes.get(name)
            is_inside = target is None or target == "data:," or target[1:] in ids
            assert is_inside or target in FILES_BESIDE, (element.tag, name, target)
    outside = re.sub(r'xmlns(:xlink)?="[^"]*"', "", page.source)
    assert "http" not in outside.replace('http-equiv="', "")
    assert "@import" not in outside
    assert all(target[0] == "#" for target in re.findall(r"url\(([^)]*)\)", outside))


def test_ids_are_unique_and_headings_leave_no_level_out(page: Page) -> None:
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    levels = [int(element.tag[1]) for element in page.elements if re.fullmatch("h[1-6]", element.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_every_chart_says_in_words_what_it_shows(page: Page, clean_results: Results) -> None:
    named = [element.attributes["aria-label"] for element in page.all("div") if element.attributes.get("role") == "img"]
    assert len(named) == len(page.all("figure")) == len(drawing.select_charts(clean_results)) == 4
    for name, chart in drawing.select_charts(clean_results).items():
        assert [label for label in named if f"{chart.CAPTION} {chart.describe_chart(clean_results)}" in label], name


def test_a_browser_runs_the_script_of_the_page_alone(page: Page) -> None:
    (script,) = re.findall("<script>(.*?)</script>", page.source, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [one.attributes["content"] for one in page.all("meta") if "http-equiv" in one.attributes]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "innerHTML" not in script


@pytest.mark.parametrize(
    "row",
    [
        "1proc 1 10.0 s 6.30 1.60 1.00x 100 % n/a n/a 0.2 %",
        "2proc 2 6.40 s 9.84 2.50 1.56x 78 % 1.50x to 1.67x (2) 0.28 0.3 %",
        "base model 4.1000 60.3 n/a 16",
        "2proc 3.2500 25.8 -0.8500 16",
        "2proc ddp 2 torchrun cpu, gloo 1 1 2 0.00381 MiB 1.00 s 0",
        "1.56x speedup 2proc against 1proc 78 % parallel efficiency",
        "6.40 s per epoch 2proc; 1proc 10.0 s 9.84 tokens per second 2proc 17 of 17 gates passed",
    ],
)
def test_the_figures_on_the_page_are_those_worked_out_by_hand(page: Page, row: str) -> None:
    assert row in page.text


def test_every_column_is_explained(page: Page) -> None:
    words = [element for element in page.all("a") if element.attributes.get("class") == "term"]
    headings = page.all("th")
    assert len(words) == sum(element.attributes.get("scope") == "col" for element in headings)
    ids = {element.attributes.get("id") for element in page.elements}
    assert all(word.attributes["href"][1:] in ids for word in words)
    assert all(len(word.attributes["title"]) > 10 for word in words)


def test_models_that_wrote_the_same_stand_together(clean_results: Results) -> None:
    sample = clean_results.quality.samples[0]
    same = sample.model_copy(update={"continuations": {"base": "a", "1proc": "b", "2proc": "b"}})
    quality = clean_results.quality.model_copy(update={"samples": [same]})
    text = undrawn_page_of(clean_results.model_copy(update={"quality": quality})).text
    assert "the text itself sum of the values. base model a 1proc and 2proc b" in text


def test_hostile_names_are_shown_and_never_run(clean_results: Results) -> None:
    page = page_of(hostile(clean_results))
    assert len(page.all("script")) == 1
    assert NAMES["1proc"] in page.text
    assert NAMES["2proc"] in page.text
    assert " ".join(TEXT.split()) in page.text
    assert all(not name.startswith("on") for element in page.elements for name in element.attributes)


def test_a_withheld_speedup_is_shown_as_withheld_with_the_gate_and_its_numbers(withheld_results: Results) -> None:
    page = page_of(withheld_results)
    assert "withheld speedup 2proc against 1proc withheld parallel efficiency" in page.text
    assert "2proc 2 6.40 s 9.84 2.50 withheld withheld withheld withheld 0.3 %" in page.text
    assert "2proc 8-16 epoch 1: 2 different checksums on 2 ranks" in page.text
    assert page.text.count("Withheld: gate “Same parameters on all ranks” failed.") == 2
    assert withheld_results.verdict in page.text
