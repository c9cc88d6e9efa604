"""Trainings with one slow rank and trainings without: who is called a straggler?"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.records.outputs import SegmentOutputs
from tasks.records.run import read_segment
from tasks.reporting.straggler import find_slowest_rank
from tests.chaos.trial import Trial
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.forked_ranks import ForkedRanks, last_words

_NUM_ROWS = 1600
"""A hundred steps: a few seconds, which are the least in which a straggler can be told."""
_TIMES_AS_LONG = (3, 2)
_LOG_EVERY_STEPS = (1, 4)


def straggler_trials(root: Path, ranks: ForkedRanks, *, num_trials: int) -> Iterator[Trial]:
    """Train on two ranks, one of which takes two or three times as long: it has to be called a straggler."""
    for number in range(num_trials):
        slow, factor = number % 2, _TIMES_AS_LONG[number // 2 % 2]
        fault = f"rank={slow},step=1,kind=slow:{factor}"
        yield _trial(root / str(number), ranks, slow=slow, fault=fault, number=number)


def equal_trials(root: Path, ranks: ForkedRanks, *, num_trials: int) -> Iterator[Trial]:
    """Train on two ranks that nothing is done to: none may be called a straggler."""
    for number in range(num_trials):
        yield _trial(root / str(number), ranks, slow=None, fault=None, number=number)


def _trial(root: Path, ranks: ForkedRanks, *, slow: int | None, fault: str | None, number: int) -> Trial:
    """Train once, and judge what the report would say of the slowest rank; what is judged wrong is kept."""
    config = make_config(
        root / "work", make_tiny_model(root / "model"), [make_slice(root / "slice", num_rows=_NUM_ROWS, min_len=8)],
        strategy="ddp", world_size=2, global_batch_size=16, checkpoint_every_steps=0,
        log_every_steps=_LOG_EVERY_STEPS[number // 4 % 2],
    )  # fmt: skip
    if ranks.launch(config, fault=fault) != [0, 0]:
        return Trial(problem=last_words(config))
    folder = root / "work" / "segments" / config["segments"][0]["fingerprint"]
    segment = read_segment(folder)
    found = find_slowest_rank(SegmentOutputs(folder, segment).read_steps())
    if found is None or found.is_straggler != (slow is not None) or (found.is_straggler and found.rank != slow):
        return Trial(problem=f"fault: {fault or 'none'}; found: {found}")
    shutil.rmtree(root)
    return Trial()
