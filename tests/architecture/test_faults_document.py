"""docs/faults.md names tests that are there, and every fault."""

import ast
import re
from pathlib import Path

import pytest

_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def _tests_in(file: Path) -> set[str]:
    """Return the names under which pytest collects functions of the file."""
    return {part.name for part in ast.parse(file.read_text()).body if isinstance(part, ast.FunctionDef)}


def _problems(text: str, project: Path) -> list[str]:
    found = []
    for name, function in _NAMED.findall(text):
        file = project / name
        if not (file.is_file() and file.name.startswith("test_")):
            found.append(f"{name} is no file of tests")
        elif not function.startswith("test_") or function not in _tests_in(file):
            found.append(f"{name} has no test {function!r}")
    return found


def test_every_test_that_the_document_names_is_there(project: Path) -> None:
    text = (project / "docs" / "faults.md").read_text()
    assert _problems(text, project) == []
    assert len(_NAMED.findall(text)) == text.count("`tests/") > 40


def test_all_faults_are_told_with_who_shows_them_or_why_nobody_does(project: Path) -> None:
    lines = (project / "docs" / "faults.md").read_text().splitlines()
    rows = [re.split(r" \| ", line.strip("| ")) for line in lines if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 47
    assert {len(row) for row in rows} == {4}
    for row in rows:
        assert _NAMED.search(row[3]) or "not shown yet" in row[3] or "cannot be" in row[3], row


@pytest.mark.parametrize(
    "named", ["tests/nowhere/test_x.py::test_y", "tests/tiny.py::make_slice", "tests/flows/test_order.py::test_z"]
)
def test_a_test_that_is_not_there_is_found(named: str, project: Path) -> None:
    assert len(_problems(f"shown by `{named}`", project)) == 1
