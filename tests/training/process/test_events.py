"""The event stream of a launch."""

import logging
from pathlib import Path

import pytest

from tests.gpu.steps import read_told
from tests.training.conftest import events_in
from tests.training.replays import check, list_checked
from training.loop import train
from training.process.events import EventStream, StopRequest


def test_every_launch_starts_an_empty_stream_and_only_rank_0_writes(tmp_path):
    stream = tmp_path / "steps.jsonl"
    EventStream(stream, rank=0).send("step", step=1)
    EventStream(stream, rank=1).send("step", step=2)
    assert events_in(stream) == [{"event": "step", "step": 1}]
    EventStream(stream, rank=0)
    assert events_in(stream) == []


@pytest.mark.slow
def test_a_full_disk_ends_the_stream_with_one_warning_and_no_training(caplog, toy, alone, signals_as_before):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    events = EventStream(full, rank=0)
    with caplog.at_level(logging.WARNING):
        events.send("step", step=1)
        config = check(toy.tell(), 1, 3)
        train(read_told(config, toy.folder), alone, stop=StopRequest(), events=events)
    assert caplog.text.count("the event stream ends here") == 1
    assert [(update["step"], update["verdict"]) for update in list_checked(config)] == [
        (1, "not checked"),
        (3, "not checked"),
    ]
