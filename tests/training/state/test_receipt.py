"""Folders that are whole or absent; crashes, truncation and bit flips of real checkpoints are in tests/chaos."""

import json
import logging
from pathlib import Path

import pytest

from training.state.receipt import (
    RECEIPT,
    find_problem,
    list_set_aside,
    remove_unfinished,
    seal_folder,
    set_aside,
)


def _seal(destination: Path, content: bytes = b"weights" * 40) -> None:
    with seal_folder(destination, fingerprint="f1", facts={"world_size": 2}) as folder:
        (folder / "weights.pt").write_bytes(content)
        (folder / "state.pt").write_bytes(content[::-1])


def test_a_sealed_folder_verifies_and_only_for_its_own_fingerprint(tmp_path: Path) -> None:
    _seal(tmp_path / "a")
    assert find_problem(tmp_path / "a", fingerprint="f1") is None
    assert "fingerprint is f1, wanted f2" in (find_problem(tmp_path / "a", fingerprint="f2") or "")
    receipt = json.loads((tmp_path / "a" / RECEIPT).read_bytes())
    assert receipt["files"]["weights.pt"]["num_bytes"] == 280
    assert receipt["world_size"] == 2


def test_an_alteration_of_any_byte_of_the_receipt_is_detected_even_if_it_says_the_same(tmp_path: Path) -> None:
    _seal(tmp_path / "a")
    receipt = tmp_path / "a" / RECEIPT
    content = receipt.read_bytes()
    for altered in (content[:-1], content.replace(b"  ", b" "), content + b"\n"):
        receipt.write_bytes(altered)
        assert "was altered" in (find_problem(tmp_path / "a", fingerprint="f1") or "")


def test_a_missing_receipt_a_missing_file_and_a_file_too_many_are_detected(tmp_path: Path) -> None:
    for name, change in {
        "receipt": lambda folder: (folder / RECEIPT).unlink(),
        "missing": lambda folder: (folder / "state.pt").unlink(),
        "many": lambda folder: (folder / "extra").touch(),
    }.items():
        _seal(tmp_path / name)
        change(tmp_path / name)
        assert find_problem(tmp_path / name, fingerprint="f1")


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with seal_folder(tmp_path / "a", fingerprint="f1", facts={}) as folder:
            (folder / "weights.pt").touch()
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_set_aside_is_gone_from_its_place_with_a_warning_and_its_reason_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _seal(tmp_path / "a")
    with caplog.at_level(logging.WARNING):
        set_aside(tmp_path / "a", "weights.pt has 3 bytes")
    assert not (tmp_path / "a").exists()
    assert "NOT USED" in caplog.text
    assert "weights.pt has 3 bytes" in caplog.text
    assert list_set_aside(tmp_path) == ["a: weights.pt has 3 bytes"]
    assert list_set_aside(tmp_path, "b") == []


def test_temporary_files_and_folders_are_removed_and_nothing_else(tmp_path: Path) -> None:
    _seal(tmp_path / "a")
    (tmp_path / "b.tmp-1").mkdir()
    (tmp_path / ".config.json.x.tmp").touch()
    (tmp_path / ".config.json").touch()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".config.json", "a"]
