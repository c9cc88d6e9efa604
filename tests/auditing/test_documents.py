"""docs/audit.md has every question that there is, and nothing that is asked no more."""

import re

from ddp_audit.checks import QUESTIONS
from ddp_audit.findings import Question, cells, gradients, hygiene, parameters, rows


def test_the_page_of_the_audit_has_every_question(project):
    page = (project / "docs" / "audit.md").read_text()
    found = re.findall(r"^\| ([A-Z][^|]*?) \|", page.partition("## What is asked")[2], flags=re.MULTILINE)
    assert found == [one.name for one in QUESTIONS]
    every = [one for room in (cells, gradients, hygiene, parameters, rows) for one in vars(room).values()]
    assert {one.name for one in every if isinstance(one, Question)} == set(found)
