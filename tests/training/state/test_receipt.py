"""Folders that are whole or absent; crashes, truncation and bit flips of real checkpoints are in tests/chaos."""

import json

import pytest

from training.state.receipt import (
    RECEIPT,
    find_problem,
    seal_folder,
)


def _seal(destination, content=b"weights" * 40):
    with seal_folder(destination, fingerprint="f1", facts={"world_size": 2}) as folder:
        (folder / "weights.pt").write_bytes(content)
        (folder / "state.pt").write_bytes(content[::-1])


def test_a_sealed_folder_verifies_and_only_for_its_own_fingerprint(tmp_path):
    _seal(tmp_path / "a")
    assert find_problem(tmp_path / "a", fingerprint="f1") is None
    assert "fingerprint is f1, wanted f2" in (find_problem(tmp_path / "a", fingerprint="f2") or "")
    receipt = json.loads((tmp_path / "a" / RECEIPT).read_bytes())
    assert receipt["files"]["weights.pt"]["num_bytes"] == 280
    assert receipt["world_size"] == 2


def test_an_alteration_of_any_byte_of_the_receipt_is_detected_even_if_it_says_the_same(tmp_path):
    _seal(tmp_path / "a")
    receipt = tmp_path / "a" / RECEIPT
    content = receipt.read_bytes()
    for altered in (content[:-1], content.replace(b"  ", b" "), content + b"\n"):
        receipt.write_bytes(altered)
        assert "was altered" in (find_problem(tmp_path / "a", fingerprint="f1") or "")


def test_a_missing_receipt_a_missing_file_and_a_file_too_many_are_detected(tmp_path):
    for name, change in {
        "receipt": lambda folder: (folder / RECEIPT).unlink(),
        "missing": lambda folder: (folder / "state.pt").unlink(),
        "many": lambda folder: (folder / "extra").touch(),
    }.items():
        _seal(tmp_path / name)
        change(tmp_path / name)
        assert find_problem(tmp_path / name, fingerprint="f1")


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def fail():
        with seal_folder(tmp_path / "a", fingerprint="f1", facts={}) as folder:
            (folder / "weights.pt").touch()
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert list(tmp_path.iterdir()) == []
