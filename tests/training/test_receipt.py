"""Folders that are whole or absent: crashes, truncation and bit flips."""

import json
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.receipt import RECEIPT, problem_with, remove_unfinished, sealed_folder, set_aside


def _seal(destination: Path, content: bytes = b"weights" * 40) -> None:
    with sealed_folder(destination, fingerprint="f1", facts={"world_size": 2}) as folder:
        (folder / "weights.pt").write_bytes(content)
        (folder / "state.pt").write_bytes(content[::-1])


def test_a_sealed_folder_verifies_and_only_for_its_own_fingerprint(tmp_path: Path) -> None:
    _seal(tmp_path / "a")
    assert problem_with(tmp_path / "a", fingerprint="f1") is None
    assert "fingerprint is f1, wanted f2" in (problem_with(tmp_path / "a", fingerprint="f2") or "")
    receipt = json.loads((tmp_path / "a" / RECEIPT).read_bytes())
    assert receipt["files"]["weights.pt"]["num_bytes"] == 280
    assert receipt["world_size"] == 2


def test_truncation_at_any_offset_is_detected(tmp_path: Path) -> None:
    choose = random.Random(0)
    for index in range(50):
        folder = tmp_path / str(index)
        _seal(folder)
        file = choose.choice(sorted(folder.iterdir()))
        os.truncate(file, choose.randrange(file.stat().st_size - 1))
        assert problem_with(folder, fingerprint="f1"), file


def test_a_flipped_bit_in_any_file_or_in_the_receipt_is_detected(tmp_path: Path) -> None:
    choose = random.Random(1)
    _seal(tmp_path / "a")
    files = sorted((tmp_path / "a").iterdir())
    for _ in range(200):
        file = choose.choice(files)
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
        file.write_bytes(flipped)
        assert problem_with(tmp_path / "a", fingerprint="f1"), file
        file.write_bytes(content)


def test_a_missing_receipt_a_missing_file_and_a_file_too_many_are_detected(tmp_path: Path) -> None:
    for name, change in {
        "receipt": lambda folder: (folder / RECEIPT).unlink(),
        "missing": lambda folder: (folder / "state.pt").unlink(),
        "many": lambda folder: (folder / "extra").touch(),
    }.items():
        _seal(tmp_path / name)
        change(tmp_path / name)
        assert problem_with(tmp_path / name, fingerprint="f1")


def _crash_at(call: int, work: Callable[[], None]) -> bool:
    """Run `work` in a child that dies at the given system call of the protocol; return True if it did."""
    pid = os.fork()
    if pid == 0:
        calls = iter(range(10_000))

        def dying(real: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                if next(calls) == call:
                    os._exit(9)
                return real(*arguments, **options)

            return wrapped

        for name in ("open", "fsync", "rename", "mkdir", "close"):
            setattr(os, name, dying(getattr(os, name)))
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_a_crash_at_any_point_of_writing_leaves_a_whole_folder_or_none(tmp_path: Path) -> None:
    _seal(tmp_path / "step-1")
    for call in range(200):
        destination = tmp_path / "step-2"
        crashed = _crash_at(call, lambda: _seal(tmp_path / "step-2"))
        assert problem_with(tmp_path / "step-1", fingerprint="f1") is None
        assert not destination.exists() or problem_with(destination, fingerprint="f1") is None
        remove_unfinished(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} <= {"step-1", "step-2"}
        if not crashed:
            break
        if destination.exists():
            for file in destination.iterdir():
                file.unlink()
            destination.rmdir()
    assert not crashed
    assert call > 10, "the injection met too few points to prove anything"


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with sealed_folder(tmp_path / "a", fingerprint="f1", facts={}) as folder:
            (folder / "weights.pt").touch()
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_set_aside_is_gone_from_its_place_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _seal(tmp_path / "a")
    with caplog.at_level(logging.WARNING):
        set_aside(tmp_path / "a", "weights.pt has 3 bytes")
    assert not (tmp_path / "a").exists()
    assert "NOT USED" in caplog.text
    assert "weights.pt has 3 bytes" in caplog.text
