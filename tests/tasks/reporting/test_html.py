import base64
import hashlib
import itertools
import re

import pytest

from tasks.reporting.results import Results
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import page_of

FILES_BESIDE = ["results.json", "blocks.parquet", "epochs.csv", "losses.csv", "report.md", "charts/"]


@pytest.fixture(scope="module")
def page(clean_results: Results) -> Page:
    return page_of(clean_results)


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


def test_a_browser_runs_the_script_of_the_page_alone(page: Page) -> None:
    (script,) = re.findall("<script>(.*?)</script>", page.source, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [one.attributes["content"] for one in page.all("meta") if "http-equiv" in one.attributes]
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "innerHTML" not in script


def test_every_column_is_explained(page: Page) -> None:
    words = [element for element in page.all("a") if element.attributes.get("class") == "term"]
    headings = page.all("th")
    assert len(words) == sum(element.attributes.get("scope") == "col" for element in headings)
    ids = {element.attributes.get("id") for element in page.elements}
    assert all(word.attributes["href"][1:] in ids for word in words)
    assert all(len(word.attributes["title"]) > 10 for word in words)
