"""The page and the markdown of a comparison whose speed was measured, figure by figure; see measured.py."""

from typing import Any

import pytest

from tasks.process import wording
from tasks.reporting.results import Results
from tests.tasks.reporting.measured import (
    estimate,
    measurement,
    waterfall,
)  # fmt: skip
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import markdown_of, page_of


def with_measurement(results: Results, **changes: Any) -> Results:
    """Return the results with another measurement."""
    return results.model_copy(update={"measurement": measurement(**changes)})


@pytest.fixture(scope="module")
def page(measured_results: Results) -> Page:
    return page_of(measured_results)


@pytest.fixture(scope="module")
def withheld_page(withheld_measured_results: Results) -> Page:
    return page_of(withheld_measured_results)


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


def test_a_part_that_may_be_noise_is_not_called_most_of_what_is_lost(measured_results: Results) -> None:
    parts = [part.model_copy(update={"seconds": estimate(part.seconds.value, 1.5)}) for part in waterfall().parts]
    changed = measurement(waterfalls=[waterfall(parts=parts)])
    text = markdown_of(measured_results.model_copy(update={"measurement": changed}))
    assert "exposed communication: 8.3 % of the step" not in text
