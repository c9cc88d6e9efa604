"""What the link explains of an exchange, worked out by hand, and measured on two ranks."""

import dataclasses
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.auditing.launched import Launched
from tasks.auditing.link import LinkUse, list_exchange_seconds, measure_link, tell_link
from tasks.auditing.rank_record import RankRecord
from tasks.auditing.request import Request
from tests.conftest import PROJECT

_MIB = 2**20


def _make_request(folder: Path) -> Request:
    return Request(
        words=("train.py",), folder=folder, cells={"1proc": 1, "2proc": 2}, python=sys.executable, num_launches=1,
        most_steps=None, hang_seconds=60,
    )  # fmt: skip


def _make_steps(asked_for: float, by_clock: float) -> list[dict[str, Any]]:
    micros = [{"is_synchronised": False}, {"is_synchronised": True}]
    step = {"micros": micros, "seconds": {"exchange": asked_for}, "traffic": {"allreduce": [2, 8 * _MIB]}}
    return [{**step, "step": number, "ddp": {"avg_backward_comm_time": int(by_clock * 1e9)}} for number in range(1, 11)]


def _launch(folder: Path, cell: str = "2proc") -> Launched:
    ranks = [RankRecord(0, steps=_make_steps(0.01, 0.02)), RankRecord(1, steps=_make_steps(0.0, 0.01))]
    return Launched(cell, folder, ranks, 0)


def test_an_exchange_is_what_the_script_asked_for_and_what_ddp_timed_once_per_synchronised_backward(
    tmp_path: Path,
) -> None:
    assert list_exchange_seconds(_launch(tmp_path)) == pytest.approx([0.01 + 0.02, 0.01])
    silent = [{"micros": [{}], "seconds": {"forward": 1.0}}] * 5
    assert list_exchange_seconds(Launched("2proc", tmp_path, [RankRecord(0, steps=silent)], 0)) == []


def test_the_link_is_told_apart_from_waiting() -> None:
    bound = tell_link("2proc", LinkUse(2, 8 * _MIB, 0.018, [0.03, 0.01], "gloo"))
    assert "8 MiB in 2 all-reduces, for which its ranks need 18.0 ms over gloo" in bound
    assert (
        "took 20.0 ms, on the rank that waited least 10.0 ms: the link explains 90 % of it, the link bounds it" in bound
    )
    waits = tell_link("2proc", LinkUse(2, 8 * _MIB, 0.004, [0.03, 0.01], "gloo"))
    assert "explains 20 % of it, the rest is waiting for slower ranks" in waits
    assert "not known: no numpy" in tell_link("2proc", "no numpy")


@pytest.mark.slow
def test_the_same_ranks_exchange_as_many_bytes_with_nothing_beside(tmp_path: Path) -> None:
    use = measure_link(_make_request(PROJECT), _launch(tmp_path), stop=threading.Event())
    assert isinstance(use, LinkUse)
    assert (use.number, use.num_bytes, use.backend) == (2, 8 * _MIB, "gloo")
    assert use.link_seconds > 0
    # One rank exchanges nothing.
    assert measure_link(_make_request(PROJECT), _launch(tmp_path, "1proc"), stop=threading.Event()) is None


@pytest.mark.slow
def test_a_sweep_that_the_script_left_there_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    forged = {"points": [{"median_seconds": 1e-9}], "backend": "gloo", "stopped_because": ""}
    (tmp_path / "link" / "sweep.json").write_text(json.dumps(forged))
    # A Python without torch measures nothing.
    request = dataclasses.replace(_make_request(PROJECT), python="/bin/false")
    assert isinstance(measure_link(request, _launch(tmp_path), stop=threading.Event()), str)


def test_the_sweep_finds_what_the_script_finds_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/where/torch/is")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$PYTHONPATH" > "{tmp_path}/path"\nexit 1\n')
    python.chmod(0o700)
    request = dataclasses.replace(_make_request(PROJECT), python=str(python))
    measure_link(request, _launch(tmp_path), stop=threading.Event())
    assert (tmp_path / "path").read_text().strip() == f"{PROJECT}{os.pathsep}/where/torch/is"
