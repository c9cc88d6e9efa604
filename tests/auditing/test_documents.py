"""docs/audit.md has every question, and nothing that is asked no more."""

import re
from pathlib import Path

from ddp_audit.checks import QUESTIONS
from tasks.params.choices import list_file_names


def test_the_page_of_the_audit_has_every_question(project: Path) -> None:
    page = (project / "docs" / "audit.md").read_text()
    rows = re.findall(r"^\| ([A-Z][^|]*?) \|", page.partition("## What is asked")[2], flags=re.MULTILINE)
    assert rows == [one.NAME for one in QUESTIONS]


def test_every_file_of_findings_is_asked() -> None:
    assert sorted(one.__name__.rpartition(".")[2] for one in QUESTIONS) == list_file_names("ddp_audit/findings")  # type: ignore[attr-defined]
