"""Mutants by name: each names a function that is there, and tests that are."""

import importlib

import pytest

from tests.mutants import MUTANTS, PATCHES


@pytest.mark.parametrize(("patch", "tests"), MUTANTS, ids=PATCHES)
def test_what_a_mutant_names_is_there_and_so_are_its_tests(patch, tests, project):
    patch.find(vars(importlib.import_module(patch.module)))
    assert all((project / "tests" / name.partition("::")[0]).is_file() for name in tests)
