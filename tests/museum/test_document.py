"""docs/museum.md: what each exhibit changes stands there as it is, and each has a row."""

from tests.museum.catalogue import DOCUMENT, keys_shown, with_lines
from tests.museum.exhibits import EXHIBITS


def test_the_lines_of_the_document_are_those_of_the_exhibits() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_lines(text) == text, "tests/museum/exhibits changed: write them with tests.museum.catalogue.with_lines"


def test_every_exhibit_has_a_row() -> None:
    assert {part.key for part in EXHIBITS} - keys_shown(DOCUMENT.read_text(encoding="utf-8")) == set()
