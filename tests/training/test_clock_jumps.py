"""The wall clock jumps by an hour while two real ranks train: no span of time notices."""

import datetime
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import events_in, facts_of, start_ranks

pytestmark = [pytest.mark.slow, pytest.mark.alone]

# Python imports a module of this name at its start. In a rank, the clock is an hour fast or slow at every look.
_JUMPING = """
import datetime, itertools, os, time

if "RANK" in os.environ:
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


def _train(work: Path, model: Path, rows: Path) -> tuple[dict[str, Any], float]:
    """Return the config of a finished run and the seconds that it took by our clock."""
    config = make_config(work, model, [rows], strategy="ddp", world_size=2, checkpoint_every_steps=10)
    started = time.perf_counter()
    torchrun = start_ranks(config)
    assert torchrun.wait(timeout=300) == 0, (work / "output.log").read_text()
    return config, time.perf_counter() - started


def test_spans_are_of_a_clock_that_never_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = make_tiny_model(tmp_path / "model"), make_slice(tmp_path / "rows", num_rows=320)
    jumping = tmp_path / "jumping"
    jumping.mkdir()
    (jumping / "sitecustomize.py").write_text(_JUMPING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(jumping), *filter(None, [os.environ.get("PYTHONPATH")])]))
    config, seconds = _train(tmp_path / "work", model, rows)

    facts = facts_of(config)
    events = events_in(Path(config["work_dir"]) / "steps.jsonl")
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
    assert facts["tokens_per_second"] == pytest.approx(facts["num_tokens"] / facts["train_seconds"])
    parts = facts["train_seconds"] + facts["log_seconds"] + facts["checkpoint_seconds"]
    assert facts["span_seconds"] == pytest.approx(parts, rel=0.2, abs=0.5)
