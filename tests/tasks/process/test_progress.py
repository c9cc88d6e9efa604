import logging

import pytest

from tasks.process import progress
from tasks.process.progress import show_progress


@pytest.mark.parametrize(
    ("total", "seconds", "expected"),
    [
        (40, None, "blocks: 12 of 40"),
        (None, None, "blocks: 12"),
        (None, 60.0, "blocks: 12, about 45 s left"),
        (None, 15.0, "blocks: 12, past the 15 s asked for"),
    ],
)
def test_a_line_says_what_is_done_and_what_is_left(
    total: int | None, seconds: float | None, expected: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    caplog.set_level(logging.INFO)
    with show_progress("blocks", total, seconds=seconds) as advance:
        advance(5)
        now = 115.0
        advance(7)
    assert [record.getMessage() for record in caplog.records] == [expected]
