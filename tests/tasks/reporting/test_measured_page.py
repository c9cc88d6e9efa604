"""The page and the markdown of a comparison whose speed was measured, figure by figure; see measured.py."""

from typing import Any

import pytest
from markdown_it import MarkdownIt

from tasks.process import wording
from tasks.reporting import drawing
from tasks.reporting.markdown import escape
from tasks.reporting.results import Results
from tests.tasks.reporting.hostile import hostile
from tests.tasks.reporting.measured import (
    STOPPED,
    advice,
    arm,
    estimate,
    measurement,
    preflight,
    waterfall,
)  # fmt: skip
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import lacks, markdown_of, page_of, undrawn_page_of


def with_measurement(results: Results, **changes: Any) -> Results:
    """Return the results with another measurement."""
    return results.model_copy(update={"measurement": measurement(**changes)})


@pytest.fixture(scope="module")
def page(measured_results: Results) -> Page:
    return page_of(measured_results)


@pytest.fixture(scope="module")
def withheld_page(withheld_measured_results: Results) -> Page:
    return page_of(withheld_measured_results)


@pytest.mark.parametrize(
    "row",
    [
        # 68 / 42 = 1.619 +- 2.5 %; / 2 ranks = 81 %; (42 / 68 - 1 / 2) / (1 / 2) = 0.24; 69.3 / 42 = 1.65.
        "2proc 2 42.0 ms (41.6 to 42.4) 1.62x (1.58 to 1.66) 1.65x (1.61 to 1.69) 81 % (79 to 83) 0.24",
        "1proc 1 68.0 ms (67.3 to 68.7) baseline n/a baseline n/a",
        "1proc in a DDP wrapper 1 69.3 ms (68.6 to 70.0) 0.98x (0.96 to 1.01) baseline 98 % (96 to 101) n/a",
        # The slower of two ranks: 1.2 x 42 ms; 15.5 tokens and 4 samples in 42 ms, a quarter of padding on top.
        "2proc 41.6 ms 50.4 ms 369 461 95.2 n/a",
        "1.62x speedup 1.58x to 1.66x (95 %); 2proc against 1proc 81 % parallel efficiency",
        "42.0 ms per step 2proc; 1proc 68.0 ms 369 tokens per second 2proc",
        "Others used 1.2 %",
        "22 of 24 turns",
        "1.003x (0.991x to 1.012x)",
        "scatter by 2.1 %",
        STOPPED[0].lower() + STOPPED[1:],
        "2proc 2 6.40 s 9.84 2.50 1.56x 78 % 1.50x to 1.67x (2) 0.3 %",
        # 8 of 42 ms are lost, 0.2 of them not explained.
        "2proc loses 19.0 %",
        "ideal 34.0 ms 81.0 % the baseline's step",
        "exposed communication 3.50 ms (2.80 to 4.20) 8.3 % 3.30 ms runs with and without exposed communication",
        "unexplained 0.200 ms 0.5 % measured - ideal - all parts measured 42.0 ms 100.0 %",
        "micro-batches of 2 samples instead of 1 2proc 1.12x (1.10 to 1.14) recommended changes every cell",
        "DDP told that the graph never changes 2proc 1.00x (0.98 to 1.02) no clear gain",
        "2 of 3 changes",
        "All together: 1.17x (1.15 to 1.19) on 2proc train: micro_batch_size: 2 cells: 2proc:",
        "4 ranks like those of 2proc would give 2.34x",
        "load ok others use 0.1 of 2 cores GPU clocks not checked no NVIDIA driver",
    ],
)
def test_the_figures_on_the_page_are_those_worked_out_by_hand(page: Page, row: str) -> None:
    assert row in page.text


def test_every_column_is_explained_and_ids_are_unique(page: Page) -> None:
    words = [element for element in page.all("a") if element.attributes.get("class") == "term"]
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert all(word.attributes["href"][1:] in ids for word in words)
    assert len(words) == sum(element.attributes.get("scope") == "col" for element in page.all("th"))


def test_every_chart_stands_in_its_section(page: Page, measured_results: Results) -> None:
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    sections = {"training": "speed", "timeline": "losses"}
    for name, chart in drawing.select_charts(measured_results).items():
        above = [one for one in ids[: ids.index(f"chart-{name}")] if f"{one}-heading" in ids]
        assert above[-1] == sections.get(chart.SECTION, chart.SECTION), name


def test_what_is_known_of_a_gpu_is_shown_and_what_is_unknown_is_not_available(measured_results: Results) -> None:
    known = {"mfu": 0.412, "mfu_palm": 0.431, "gpu_utilisation": 0.93, "gpu_watts": 512.0, "joules_per_token": 0.0128}
    arms = [arm("1proc", 1), arm("2proc", 2, **known, peak_memory_gib=20.5, peak_reserved_gib=22.6)]
    text = undrawn_page_of(with_measurement(measured_results, arms=arms)).text
    assert "2proc 41.6 ms 50.4 ms 369 461 95.2 41.2 % (PaLM 43.1 %) 20.5 GiB 22.6 GiB 93 % 512 W 0.0128 J/token" in text
    assert "1proc 67.3 ms 74.8 ms 228 285 58.8 n/a n/a n/a n/a n/a n/a" in text
    assert "Over wrapped" not in text.partition("Glossary Cell")[0]


def test_only_what_is_recommended_has_a_patch_to_copy(page: Page, measured_results: Results) -> None:
    assert len(page.all("pre")) == 3
    tried = [one for one in advice().tried if one.verdict != "recommended"]
    none = undrawn_page_of(with_measurement(measured_results, advice={"tried": tried, "combined": None}))
    assert not none.all("pre")
    assert "None of these changes is recommended" in none.text


@pytest.mark.parametrize("tried", [advice().tried, []])
def test_a_change_that_could_not_be_run_is_named_with_the_reason(measured_results: Results, tried: list[Any]) -> None:
    failed = ["layers compiled (RuntimeError: no <b>compiler</b>)"]
    results = with_measurement(measured_results, advice={"tried": tried, "combined": None, "failed": failed})
    said = "layers compiled (RuntimeError: no"
    assert f"{said} <b>compiler</b>)." in undrawn_page_of(results).text
    assert f"{said} &lt;b&gt;compiler&lt;/b&gt;)." in markdown_of(results).replace("\\", "")


def test_a_section_with_nothing_says_why(measured_results: Results, clean_results: Results) -> None:
    bare = {"waterfalls": [], "advice": None}
    for render in (lambda results: undrawn_page_of(results).text, markdown_of):
        text = render(with_measurement(measured_results, **bare))
        assert "measure.advice" in text
        assert render(clean_results).count("left no speed.json") == 3


@pytest.mark.parametrize("changes", [{}, {"waterfalls": []}], ids=["beside a waterfall", "alone"])
def test_what_ranks_wait_for_each_other_stands_among_what_is_lost(
    measured_results: Results, changes: dict[str, Any]
) -> None:
    waits = "2stages: its ranks wait for each other 35 % of the passes."
    results = with_measurement(measured_results, waits=[waits], **changes)
    for text in (undrawn_page_of(results).text, markdown_of(results)):
        assert waits in " ".join(text.split())


def test_a_machine_that_was_not_fit_is_named_with_the_remedy(measured_results: Results) -> None:
    results = with_measurement(measured_results, preflight=preflight("others use 1.4 of 2 cores"))
    for text in (undrawn_page_of(results).text, markdown_of(results)):
        assert not lacks(text, "not fit to measure: load", "others use 1.4 of 2 cores", "end what else runs")


# Speedups with their ends, efficiencies, losses, ideal step and the model of more ranks.
WITHHELD = ["1.62x", "1.58", "1.66", "1.65x", "0.98x", "81 %", "81.0 %", "19.0 %", "34.0", "2.34x"]
WITHHELD += ["unexplained", "1.56x", "78 %"]
WITHHELD += ["1.12x (1.10 to 1.14)", "micro_batch_size: 2"]
STAYS = ["42.0 ms (41.6 to 42.4)", "3.50 ms (2.80 to 4.20)", "1.003x", "fit to measure", "Advice is withheld"]
STAYS += ["withheld", "8.3 %", "exposed communication"]


def test_what_is_withheld_is_nowhere_and_what_helps_stays(
    withheld_page: Page, withheld_measured_results: Results
) -> None:
    words = withheld_page.text.partition("Glossary Cell")[0]
    markdown = markdown_of(withheld_measured_results).partition("## Glossary")[0]
    for text in (words, markdown):
        assert [figure for figure in WITHHELD if figure in text] == []
        assert [figure for figure in STAYS if figure not in text] == []
        assert wording.FOLLOWS in text


def test_the_same_figures_do_stand_on_a_page_that_withholds_nothing(page: Page, measured_results: Results) -> None:
    for text in (page.text, markdown_of(measured_results)):
        assert [figure for figure in WITHHELD if figure not in text] == []


def test_the_markdown_holds_the_same_rows(measured_results: Results) -> None:
    text = markdown_of(measured_results)
    assert "| 2proc | 2 | 42.0 ms (41.6 to 42.4) | 1.62x (1.58 to 1.66) | 1.65x (1.61 to 1.69) |" in text
    assert "| exposed communication | 3.50 ms (2.80 to 4.20) | 8.3 % | 3.30 ms | runs with" in text
    assert "```yaml\ntrain:\n  micro_batch_size: 2\ncells:\n  2proc:\n    options: {bucket_mib: 5.0}\n```" in text
    assert "[Where the step goes](charts/waterfall.svg)" in text
    answer, _, more = measured_results.verdict.partition("; ")
    assert f"**{escape(answer)}.**\n\n{escape(more[0].upper() + more[1:])}\n" in text
    assert "exposed communication: 8.3 % of the step" in text


def test_a_part_that_may_be_noise_is_not_called_most_of_what_is_lost(measured_results: Results) -> None:
    parts = [part.model_copy(update={"seconds": estimate(part.seconds.value, 1.5)}) for part in waterfall().parts]
    changed = measurement(waterfalls=[waterfall(parts=parts)])
    text = markdown_of(measured_results.model_copy(update={"measurement": changed}))
    assert "exposed communication: 8.3 % of the step" not in text


def test_hostile_names_are_shown_and_never_run(measured_results: Results) -> None:
    results = hostile(measured_results)
    page = page_of(results)
    assert len(page.all("script")) == 1
    assert all(not name.startswith("on") for element in page.elements for name in element.attributes)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown_of(results))
    inline = [child for token in tokens for child in token.children or []]
    assert not [token for token in tokens if token.type == "html_block"]
    assert not [child for child in inline if child.type == "html_inline"]
