"""The exhibits fit the project as it stands, before any of them is run."""

import importlib

import pytest

from tests.museum.catalogue import DOCUMENT, with_table
from tests.museum.exhibit import Exhibit
from tests.museum.exhibits import EXHIBITS, PATCHES
from tests.museum.records import RECORDS


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_the_functions_that_an_exhibit_names_are_there(exhibit: Exhibit) -> None:
    for patch in exhibit.patches:
        patch.find(vars(importlib.import_module(patch.module)))
    assert exhibit.patches or exhibit.params or exhibit.scenario == "two jobs"


def test_every_exhibit_has_a_name_of_its_own() -> None:
    assert len(PATCHES) == len(EXHIBITS)


def test_the_table_of_the_document_is_that_of_the_exhibits() -> None:
    assert RECORDS.keys() <= PATCHES.keys()
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_table(text, RECORDS) == text, "written by tests.museum.catalogue.write_table"
