"""What is said of counted work while it goes on."""

import itertools
import logging

import pytest

from tasks.process.progress import show_progress


def test_work_past_its_time_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=7)
    monkeypatch.setattr("tasks.process.progress.time.monotonic", lambda: next(clock))
    with (
        caplog.at_level(logging.INFO),
        show_progress("blocks of max_seconds", None, seconds=12) as advance,
    ):
        for _ in range(2):
            advance(1)
    assert [record.message for record in caplog.records] == [
        "blocks of max_seconds: 1, about 5 s left",
        "blocks of max_seconds: 2, past their 12 s",
    ]
