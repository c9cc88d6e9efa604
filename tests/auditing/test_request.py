"""What an audit is asked for is read as a shell would, or refused in one line."""

import pytest

from ddp_audit.asked import ConfigurationError, parse_request, read_words


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train it.py").touch()
    return tmp_path


def test_words_are_split_as_by_a_shell_and_cells_have_names(folder):
    request = parse_request(
        {"SCRIPT": "python 'train it.py' --out 'runs/{cell}' --name \"a b\"", "CELLS": "1, 4", "FOLDER": str(folder)}
    )
    assert request.cells == {"1proc": 1, "4proc": 4}
    assert request.words_for("4proc") == [str(folder / "train it.py"), "--out", "runs/4proc", "--name", "a b"]
    asked = "'train it.py' --password x --hub.apiKey=y +run.wandb_key=z --eos_token e --sort-key 3 --token -v"
    hidden = "--password *** --hub.apiKey=*** +run.wandb_key=*** --eos_token e --sort-key 3 --token -v"
    assert parse_request({"SCRIPT": asked, "FOLDER": str(folder)}).command_line == f"'train it.py' {hidden}"
    module = parse_request({"SCRIPT": "-m package.train -x", "FOLDER": str(folder)})
    assert module.words == ("-m", "package.train", "-x")
    # On a command line options stand anywhere, and all else is the script's.
    words = ["train.py", "--epochs", "2", "--cells", "1,2", "--speed", "--name", "a b", "--", "--steps", "3"]
    assert read_words(words) == {"CELLS": "1,2", "SPEED": "1", "SCRIPT": "train.py --epochs 2 --name 'a b' --steps 3"}
    assert read_words([]) == {}


def test_a_check_is_one_short_launch_and_a_speed_takes_three(folder):
    asked = {"SCRIPT": "'train it.py'", "FOLDER": str(folder)}
    for more, expected in (
        ({}, (False, 1, 64, 40)),
        ({"SPEED": "1"}, (True, 3, None, None)),
        ({"STEPS": "7"}, (False, 1, 7, None)),
    ):
        found = parse_request(asked | more)
        assert (found.compares_speed, found.num_launches, found.most_steps, found.most_seconds) == expected


def test_arguments_may_be_those_of_a_cell_and_its_launch(folder):
    request = parse_request(
        {
            "SCRIPT": "'train it.py' --ranks={ranks} --batch {rank_share:32} --out {cell}/{launch} --json '{{1}}'",
            "LAUNCHER": "python -u -m spawn --num {ranks}",
            "CELLS": "1 --accumulate 4; 2 --accumulate {rank_share:4}",
            "FOLDER": str(folder),
        }
    )
    told = ["--ranks=2", "--batch", "16", "--out", "2proc/3", "--json", "{{1}}", "--accumulate", "2"]
    assert request.words_for("2proc", 3)[1:] == told
    assert request.words_for("1proc")[-2:] == ["--accumulate", "4"]
    assert request.launcher_for("2proc", 1) == [request.python, "-u", "-m", "spawn", "--num", "2"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "SCRIPT is missing"),
        ({"SCRIPT": "none.py"}, "none.py is no file of"),
        ({"SCRIPT": "'train it.py"}, "cannot be read"),
        ({"SCRIPT": "torchrun 'train it.py'"}, "torchrun starts it, or what LAUNCHER names"),
        ({"SCRIPT": "'train it.py'", "LAUNCHER": "nobody launch"}, "LAUNCHER=nobody is neither"),
        ({"SCRIPT": "'train it.py'", "SCALING": "big"}, "SCALING=big; allowed: strong"),
        ({"SCRIPT": "'train it.py' {rank_share:9}"}, r"\{rank_share:9\} does not split over 2 ranks"),
        ({"SCRIPT": "'train it.py'", "CELLS": "1,two"}, "CELLS=1,two is no list of numbers of ranks"),
        ({"SCRIPT": "'train it.py'", "CELLS": "2,2"}, "names a number of ranks twice"),
        ({"SCRIPT": "'train it.py'", "STEPS": "0"}, "STEPS=0; allowed: a whole number, at least 2"),
        ({"SCRIPT": "'train it.py'", "INTERPRETER": "/none/python"}, "INTERPRETER=/none/python cannot be run"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(folder, asked, says):
    with pytest.raises(ConfigurationError, match=says):
        parse_request({"FOLDER": str(folder), **asked})
