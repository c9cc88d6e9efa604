"""What holds for every launcher: each file of tasks/ranks/launchers/, found by listing it, with two real ranks."""

import os
import sys

import pytest

from tasks.params.choices import list_file_names
from tasks.ranks.launchers import load_launcher
from tests.extras import skip_without
from tests.flows.toy_project import living, wait_for
from training.process.files import write_json

pytestmark = pytest.mark.slow

_SECONDS = 180.0


@pytest.fixture(params=list_file_names("tasks/ranks/launchers"))
def start(request, tmp_path, starts_warm, monkeypatch):
    """Start two ranks, which do what they are told (tests/tasks/ranks/launchers/toy_rank.py).

    torchrun starts at once; the ranks are cold, and its own children.
    """
    if request.param == "ray":
        skip_without("ray")
    # That Ray's gives the others to say who was first: here there is one that fails.
    monkeypatch.setattr("tasks.ranks.launchers.ray._SECONDS_FOR_THE_OTHERS", 0.5)
    running = []

    def starting(*asked):
        config = tmp_path / "config.json"
        write_json(config, {f"rank-{rank}": what for rank, what in enumerate(asked)})
        launch = load_launcher(request.param).start(
            config, world_size=len(asked), threads_per_rank=1, log_folder=tmp_path / "logs",
            module="tests.tasks.ranks.launchers.toy_rank",
        )  # fmt: skip
        running.append(launch)
        return launch

    yield starting
    for launch in running:
        launch.stop(grace_seconds=0.0)


def _end(launch):
    wait_for(lambda: not launch.is_running, seconds=_SECONDS, what="the ranks have ended")
    launch.stop(grace_seconds=0.0)
    return launch


def _wait_for_begin(folder):
    wait_for(
        lambda: len([file for file in folder.glob("pid-*") if file.read_text()]) == 2, seconds=_SECONDS,
        what="two ranks have begun",
    )  # fmt: skip


def _alive(folder):
    """Return the ranks that still run."""
    return living([int(file.read_text()) for file in folder.glob("pid-*")])


def test_ranks_that_end_well_are_told_so(start, tmp_path):
    launch = _end(start(0, 0))
    assert (launch.exit_code(), launch.find_killed_rank(), _alive(tmp_path)) == (0, None, [])


def test_the_rank_that_fails_is_named_with_its_code_and_last_words_and_the_other_is_ended(start, tmp_path):
    launch = _end(start("stays", 5))
    assert launch.exit_code() == 5
    assert "rank 1 ended with exit code 5" in launch.explain_end()
    assert "last words of rank 1, 1 threads" in launch.explain_end()
    assert "last words of rank 0" in launch.read_last_words(0)
    assert launch.find_killed_rank() is None
    assert _alive(tmp_path) == []


def test_a_rank_that_a_signal_ended_is_the_cause_and_the_other_is_ended(start, tmp_path):
    launch = _end(start("killed", "stays"))
    assert (launch.exit_code(), launch.find_killed_rank()) == (-9, 0)
    assert "rank 0 was ended by signal 9" in launch.explain_end()
    assert _alive(tmp_path) == []


def test_ranks_that_are_asked_to_stop_may_save_first(start, tmp_path, monkeypatch):
    # A torchrun of which the ranks are the children, and which gives those that it asks no half a minute.
    monkeypatch.setattr(sys, "executable", f"{sys.prefix}/bin/python")
    monkeypatch.setenv("PET_SHUTDOWN_TIMEOUT", "1")
    launch = start("saves", "saves")
    _wait_for_begin(tmp_path)
    assert launch.is_running
    launch.stop(grace_seconds=_SECONDS)
    assert sorted(file.name for file in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert _alive(tmp_path) == []


def test_ranks_that_do_not_listen_are_ended_and_none_is_left(start, tmp_path):
    launch = start("stays", "stays")
    _wait_for_begin(tmp_path)
    launch.stop(grace_seconds=0.0)
    wait_for(lambda: not _alive(tmp_path), seconds=_SECONDS, what="none is left")
    assert not launch.is_running
    assert os.listdir(launch.log_folder), "what they said stays"
