"""docs/faults.md names tests that are there, and every fault."""

import ast
import re
from pathlib import Path

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
