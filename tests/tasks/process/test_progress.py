"""What is said of counted work while it goes on."""

import itertools
import logging

import pytest

from tasks.process.progress import show_progress


def test_work_past_its_time_is_held_against_the_keys_that_give_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=7)
    monkeypatch.setattr("tasks.process.progress.time.monotonic", lambda: next(clock))
    with (
        caplog.at_level(logging.INFO),
        show_progress("blocks", None, seconds=12, given_by="max_seconds and waterfall_seconds") as advance,
    ):
        for _ in range(2):
            advance(1)
    assert [record.message for record in caplog.records] == [
        "blocks: 1, about 5 s left",
        "blocks: 2, past the 12 s of max_seconds and waterfall_seconds",
    ]
