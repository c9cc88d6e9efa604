"""The event stream of a launch."""

import logging
from pathlib import Path

import pytest

from tests.training.conftest import events_in
from training.process.events import EventStream


def test_every_launch_starts_an_empty_stream_and_only_rank_0_writes(tmp_path):
    stream = tmp_path / "steps.jsonl"
    EventStream(stream, rank=0).send("step", step=1)
    EventStream(stream, rank=1).send("step", step=2)
    assert events_in(stream) == [{"event": "step", "step": 1}]
    EventStream(stream, rank=0)
    assert events_in(stream) == []


def test_a_full_disk_ends_the_stream_with_one_warning_and_nothing_else(caplog):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    events = EventStream(full, rank=0)
    with caplog.at_level(logging.WARNING):
        events.send("step", step=1)
        events.send("step", step=2)
    assert caplog.text.count("the event stream ends here") == 1
