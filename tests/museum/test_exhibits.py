"""The exhibits fit the project as it stands, before any of them is run."""

import shutil
from pathlib import Path

import pytest

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits import EXHIBITS


def test_a_mutation_whose_line_is_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("train()\ntrain()\n")
    for old in ("evaluate()", "train()"):
        with pytest.raises(AssertionError, match="needed: once"):
            Mutation("trainer.py", old, "pass").apply(tmp_path)


def test_a_mutation_that_only_crashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("print(1)\n")
    with pytest.raises(AssertionError, match="only crashes"):
        Mutation("trainer.py", "print(1)", "print(batch)").apply(tmp_path)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_its_line_stands_in_the_project_and_what_replaces_it_names_what_is_there(
    exhibit: Exhibit, project: Path, tmp_path: Path
) -> None:
    for number, mutation in enumerate(found for found in (exhibit.mutation, exhibit.disarmed) if found):
        copy = tmp_path / str(number) / mutation.file
        copy.parent.mkdir(parents=True)
        shutil.copyfile(project / mutation.file, copy)
        mutation.apply(tmp_path / str(number))


def test_every_exhibit_has_a_name_of_its_own_and_something_wrong_with_it() -> None:
    assert len({exhibit.key for exhibit in EXHIBITS}) == len(EXHIBITS)
    for exhibit in EXHIBITS:
        assert exhibit.mutation or exhibit.params or exhibit.scenario == "two jobs"
        assert exhibit.caught_by
