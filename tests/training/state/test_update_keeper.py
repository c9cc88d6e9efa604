"""Which updates are kept to be checked, with a stage that answers at once."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from training.process.files import write_json
from training.process.heartbeat import Heartbeat
from training.record.segment import SegmentRecord
from training.record.segment_facts import Counters
from training.state.update_keeper import FACTS, RESULT, UpdateKeeper
from training.step.snapshot import Digests

NUM_STEPS = 6


def _answer(_event, *, step, folder):
    """Say of an update what a stage says of it: there is no gradient to compare of one that was skipped."""
    norm = json.loads((Path(folder) / FACTS).read_bytes())["grad_norm"]
    compared = {"loss": {}} if norm is None else {"loss": {}, "gradient": {}}
    write_json(Path(folder) / RESULT, {"step": step, "verdict": "passed", "problem": None, "compared": compared})
    return True


@pytest.mark.parametrize(
    ("skipped", "checked"),
    [
        ([], [1, 4]),
        ([1], [1, 3, 4]),
        # A skipped one stands in for none: the next one does that is not.
        ([1, 2, 3], [1, 4, 6]),
        ([1, 3, 4, 6], [1, 4]),
    ],
)
def test_another_step_stands_in_for_one_that_the_loss_scale_skipped(skipped, checked, alone, toy):
    config = toy.read(precision="fp16")
    segment = replace(config.segments[0], checked_steps=(1,), optional_steps=(4,))
    counters = Counters(started_at="", start_checksum="")
    record = SegmentRecord(
        segment=segment, first_step=1, num_steps=NUM_STEPS, counters=counters, folder=config.work_dir
    )
    strategy = SimpleNamespace(num_checkpoint_bytes=0, snapshot=list, digest=lambda: Digests(["a"], ["b"]))
    keeper = UpdateKeeper(
        config, alone, strategy, record, pause=contextlib.nullcontext, events=SimpleNamespace(send=_answer),
        heartbeat=Heartbeat(),
    )  # fmt: skip
    # As the loop does, of which only the last step would be a log point.
    keeper.begin(1)
    window = []
    for step in range(1, NUM_STEPS + 1):
        norm = None if step in skipped else 1.0
        window.append(SimpleNamespace(step=step, loss_sum=1.0, num_targets=1, grad_norm=norm))
        is_logged = step == NUM_STEPS or bool(keeper.waiting) or all(map(keeper.is_due, (step, step + 1)))
        keeper.end(step)
        if is_logged:
            keeper.replay(window)
            window = []
        keeper.begin(step + 1)
    assert [update["step"] for update in counters.checked_updates] == checked
    assert not (config.work_dir / "updates").exists()
