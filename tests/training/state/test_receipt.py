"""Folders that are whole or absent; crashes, truncation and bit flips of real checkpoints are in tests/chaos."""

import json

import pytest

from training.state.receipt import RECEIPT, find_receipt_problem, seal_folder


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: None, None),
        # The same content, said otherwise.
        (lambda folder: (folder / RECEIPT).write_bytes((folder / RECEIPT).read_bytes() + b"\n"), "was altered"),
        (lambda folder: (folder / RECEIPT).unlink(), ""),
        (lambda folder: (folder / "state.pt").unlink(), ""),
        (lambda folder: (folder / "extra").touch(), ""),
    ],
)
def test_a_sealed_folder_verifies_for_its_own_fingerprint_until_anything_of_it_is_altered(change, says, tmp_path):
    with seal_folder(tmp_path / "a", fingerprint="f1", facts={"world_size": 2}) as folder:
        for name in ("weights.pt", "state.pt"):
            (folder / name).write_bytes(b"weights" * 40)
    receipt = json.loads((tmp_path / "a" / RECEIPT).read_bytes())
    assert (receipt["files"]["weights.pt"]["num_bytes"], receipt["world_size"]) == (280, 2)
    assert "fingerprint is f1, wanted f2" in find_receipt_problem(tmp_path / "a", fingerprint="f2")
    change(tmp_path / "a")
    problem = find_receipt_problem(tmp_path / "a", fingerprint="f1")
    assert problem is None if says is None else says in problem
