"""The wall clock jumps by an hour while two real ranks train: no span of time notices."""

import datetime
import time

import pytest

from tests.tiny import make_slice
from tests.training.changed_rank import BEFORE
from tests.training.conftest import Toy, events_in, facts_of
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = [pytest.mark.slow, pytest.mark.alone]

_JUMPING = """
import datetime, itertools, time

hours = itertools.cycle([3600.0, -3600.0, 0.0])
true_time, true_time_ns, TrueDatetime = time.time, time.time_ns, datetime.datetime

class Jumping(TrueDatetime):
    @classmethod
    def now(cls, tz=None):
        return TrueDatetime.now(tz) + datetime.timedelta(seconds=next(hours))

time.time = lambda: true_time() + next(hours)
time.time_ns = lambda: true_time_ns() + int(next(hours) * 1e9)
datetime.datetime = Jumping
"""
"""In a rank, the clock is an hour fast or slow at every look."""


def test_spans_are_of_a_clock_that_never_jumps(ranks: ForkedRanks, toy: Toy) -> None:
    rows = make_slice(toy.folder / "rows", num_rows=320)
    config = toy.tell(slices=[rows], world_size=2, checkpoint_every_steps=10)
    (toy.folder / "work").mkdir()
    (toy.folder / "work" / BEFORE).write_text(_JUMPING)
    started = time.perf_counter()
    assert ranks.launch(config, entry="tests.training.changed_rank") == [0, 0], last_words(config)
    seconds = time.perf_counter() - started

    facts = facts_of(config)
    events = events_in(toy.folder / "work" / "steps.jsonl")
    dates = [datetime.datetime.fromisoformat(event["started_at"]) for event in (events[0], facts)]
    assert abs((dates[1] - dates[0]).total_seconds()) > 3000, "the clock did jump"

    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == facts["num_steps"] == 40
    named = [(key, value) for event in [*events, facts] for key, value in event.items() if key.endswith("seconds")]
    # Some are of one rank each.
    spans = [(key, value) for key, values in named for value in (values if isinstance(values, list) else [values])]
    assert len(spans) > 3 * len(steps)
    assert [span for span in spans if not 0 <= span[1] < seconds] == []
    assert facts["train_seconds"] == pytest.approx(sum(step["seconds"] for step in steps))
    parts = facts["train_seconds"] + facts["log_seconds"] + facts["checkpoint_seconds"]
    assert facts["span_seconds"] == pytest.approx(parts, rel=0.2, abs=0.5)
