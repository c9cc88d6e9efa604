"""Killed at random moments, a training ends with the clean run's weights."""

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import are_bitwise_equal, weights_at_end
from tests.training.forked_ranks import ForkedRanks

pytestmark = pytest.mark.slow

_NUM_KILLS = 20


def test_20_kills_of_a_random_rank_at_a_random_moment_change_no_bit(tmp_path: Path, ranks: ForkedRanks) -> None:
    choose, model = random.Random(0), make_tiny_model(tmp_path / "model", dropout=0.1)
    told = {"epochs": 2, "strategy": "ddp", "world_size": 2, "micro_batch_size": 1, "global_batch_size": 4}
    rows = [make_slice(tmp_path / "slice", num_rows=318)]
    clean, config = (
        make_config(tmp_path / name, model, rows, checkpoint_every_steps=5, **told) for name in ("clean", "killed")
    )
    began = time.monotonic()
    ranks.train(clean)
    most_seconds = (time.monotonic() - began) / 4
    num_kills = 0
    while True:
        pids = ranks.start(config, ends_others=True)
        if num_kills < _NUM_KILLS:
            # While ranks join and load, train or save; one that has ended before is spared.
            time.sleep(choose.uniform(0, most_seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(choose.choice(pids), signal.SIGKILL)
        if any(ranks.wait()):
            num_kills += 1
            continue
        for index in range(2):
            assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        assert list(Path(config["work_dir"]).rglob("*tmp*")) == []
        if num_kills >= _NUM_KILLS:
            return
        shutil.rmtree(config["work_dir"])
