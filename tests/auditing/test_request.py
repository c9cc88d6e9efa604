"""What an audit is asked for is read as a shell would, or refused in one line."""

from pathlib import Path

import pytest

from tasks.auditing.request import parse_request
from tasks.process.failure import ConfigurationError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train it.py").touch()
    return tmp_path


def test_words_are_split_as_by_a_shell_and_cells_have_names(folder: Path) -> None:
    request = parse_request(
        {"SCRIPT": "python 'train it.py' --out 'runs/{cell}' --name \"a b\"", "CELLS": "1, 4", "FOLDER": str(folder)}
    )
    assert request.cells == {"1proc": 1, "4proc": 4}
    assert request.words_for("4proc") == [str(folder / "train it.py"), "--out", "runs/4proc", "--name", "a b"]
    assert request.num_launches == 3
    assert request.most_steps is None


def test_a_module_is_left_as_it_is(folder: Path) -> None:
    assert parse_request({"SCRIPT": "-m package.train -x", "FOLDER": str(folder)}).words == (
        "-m",
        "package.train",
        "-x",
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "SCRIPT is missing"),
        ({"SCRIPT": "none.py"}, "none.py is no file of"),
        ({"SCRIPT": "'train it.py"}, "cannot be read"),
        ({"SCRIPT": "torchrun 'train it.py'"}, "which the audit does itself"),
        ({"SCRIPT": "'train it.py'", "CELLS": "1,two"}, "CELLS=1,two is no list of numbers of ranks"),
        ({"SCRIPT": "'train it.py'", "CELLS": "2,2"}, "names a number of ranks twice"),
        ({"SCRIPT": "'train it.py'", "STEPS": "0"}, "STEPS=0; allowed: a whole number, at least 2"),
        ({"SCRIPT": "'train it.py'", "INTERPRETER": "/none/python"}, "INTERPRETER=/none/python cannot be run"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(folder: Path, asked: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_request({"FOLDER": str(folder), **asked})
