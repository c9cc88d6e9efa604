"""One question about a script per file, answered from the record of its ranks.

A file offers what Question says. It answers `passed` only where the record shows it, and `not checked`, with the words
"not observable", where it cannot; None where the question makes no sense of the cell.
"""

from typing import Protocol

from tasks.auditing.launched import Audit
from tasks.records.gate import Finding


class Question(Protocol):
    """What a file of this folder offers."""

    NAME: str
    """What holds if the answer is yes."""
    QUESTION: str
    """What is asked, in plain words."""
    REMEDY: str
    """What mends it."""

    def find(self, audit: Audit, cell: str, /) -> Finding | None:
        """Return what is found of a cell."""
        ...
