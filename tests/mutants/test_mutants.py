"""Mutants by name: each names a function that is there, and is in place in every process that is started."""

import importlib

import pytest

from tests.mutants import MUTANTS, PATCHES
from tests.mutants.__main__ import TABLE, read_rows
from tests.mutants.patching import make_environment
from tests.processes import run_python

_SAYS = "from tasks.train import require_room as of; print(of.__name__, of(1, 2, num=3, what=str()))"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.patch.name)
def test_what_a_mutant_names_is_there_and_so_are_its_tests(mutant, project):
    mutant.patch.find(vars(importlib.import_module(mutant.patch.module)))
    assert all((project / "tests" / name.partition("::")[0]).is_file() for name in mutant.tests)


def test_the_table_has_a_row_of_every_mutant():
    assert read_rows(TABLE.read_text(encoding="utf-8")).keys() == PATCHES.keys()


_STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_SAYS!r}], env={{}})"


@pytest.mark.parametrize("program", [_SAYS, _STARTS])
def test_a_process_and_what_it_starts_have_the_mutant(program, project):
    done = run_python("-c", program, folder=project, **make_environment("tests.mutants:tasks.train:require_room"))
    assert done.stdout == "require_room None\n", done.stderr


def test_a_module_that_runs_by_its_name_has_the_mutant(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "slice.py").write_text(
        'def check_extent(): return "whole"\ndef _main(): print(check_extent())\nif __name__ == "__main__": _main()\n'
    )
    changes = make_environment("tests.mutants:tasks.slice:check_extent")
    done = run_python("-m", "tasks.slice", folder=tmp_path, **changes)
    assert done.stdout == "None\n", done.stderr
