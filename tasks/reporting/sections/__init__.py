"""One section of the report per file: its title, and the blocks that it makes of the results.

Their order stands in tasks/reporting/document.py.
"""

from typing import Protocol

from tasks.reporting.blocks import Block, PageSection
from tasks.reporting.results import Results


class SectionFile(Protocol):
    """What a file of this folder has to offer; its name is the section's anchor."""

    __name__: str

    TITLE: str
    """Its heading."""

    def make_blocks(self, results: Results, /) -> list[Block]:
        """Return what it says of the results, in order."""


def make_section(file: SectionFile, results: Results) -> PageSection:
    """Return the section that a file of this folder makes of the results."""
    anchor = file.__name__.rpartition(".")[2].replace("_", "-")
    return PageSection(anchor, file.TITLE, file.make_blocks(results))
