"""Finished work in a folder: whole or not there, and what had its name stays until it is."""

import logging

import pytest

from tasks.records.manifests import TrialFile
from tasks.store.kept import fill_folder, is_kept, keep, read_kept


def _keep(folder, trial):
    with fill_folder(folder) as new:
        keep(TrialFile(trial=trial), new)


def _fail(folder, *, keeps_failed):
    before = read_kept(folder, TrialFile)
    with fill_folder(folder, keeps_failed=keeps_failed) as new:
        keep(TrialFile(trial="begun"), new)
        (new / "log").write_text("what went wrong")
        assert read_kept(folder, TrialFile) == before
        raise RuntimeError


def test_what_was_kept_stays_while_its_successor_is_made_and_after_that_fails(tmp_path):
    folder = tmp_path / "entry"
    _keep(folder, "first")
    with pytest.raises(RuntimeError):
        _fail(folder, keeps_failed=False)
    assert read_kept(folder, TrialFile) == TrialFile(trial="first")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]
    _keep(folder, "second")
    assert read_kept(folder, TrialFile) == TrialFile(trial="second")


def test_what_a_failure_has_left_to_be_read_is_gone_with_the_next_try(tmp_path):
    folder = tmp_path / "entry"
    with pytest.raises(RuntimeError):
        _fail(folder, keeps_failed=True)
    (left,) = tmp_path.iterdir()
    assert (left / "log").read_text() == "what went wrong"
    assert not is_kept(folder)
    _keep(folder, "next")
    assert list(tmp_path.iterdir()) == [folder]
    assert not (folder / "log").exists()


@pytest.mark.parametrize("name", ["trial.json", "manifest.json"])
@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"trial": "other"}'])
def test_a_file_that_is_lost_or_altered_is_said_and_nothing_is_kept_then(tmp_path, caplog, name, content):
    folder = tmp_path / "entry"
    assert not is_kept(folder)
    _keep(folder, "first")
    assert is_kept(folder)
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_kept(folder, TrialFile) is None
    assert f"{folder} is damaged" in caplog.text
