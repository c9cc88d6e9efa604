"""One question about a script per file, answered from the record of its ranks.

A file offers what Question says. It answers `passed` only where the record shows it, and `not checked`, with the words
"not observable", where it cannot; None where the question makes no sense of the cell.
"""

from typing import Protocol

from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding

CLASSES = ("wrong training", "unlike cells", "hygiene")
"""What a failed finding is about, the gravest first: the training, what two cells have to share, or what is right and
makes a figure say less."""


class Question(Protocol):
    """What a file of this folder offers."""

    NAME: str
    """What holds if the answer is yes."""
    QUESTION: str
    """What is asked, in plain words."""
    CLASS: str
    """Which of CLASSES its failed findings are of."""
    SAYS: dict[str, str]
    """Code of a failed finding -> the sentence that the report begins with, filled with the finding's numbers."""
    REMEDY: str
    """What mends it."""

    def find(self, audit: Audit, cell: str, /) -> Finding | None:
        """Return what is found of a cell whose steps were seen."""
