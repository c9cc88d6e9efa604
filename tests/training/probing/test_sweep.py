"""The sweep of a link on real ranks: real all-reduces on gloo."""

import json

import numpy as np
import pytest

from tests.training.conftest import Toy
from tests.training.forked_ranks import ForkedRanks, last_words
from tests.training.probing.sweeps import NUM_REPEATS, SIZES
from training.probing.sweep import sweep_exchange
from training.process.distributed import Ranks


def test_a_sweep_times_every_size_that_fits_and_says_what_it_left_out(ranks: ForkedRanks, toy: Toy) -> None:
    config = toy.tell(world_size=2)
    codes = ranks.launch(config, entry="tests.training.probing.sweeps")
    assert codes == [0, 0], last_words(config)
    two = json.loads((toy.folder / "work" / "sweeps.json").read_bytes())
    sweep, short, slept = two["sweep"], two["short_sweep"], two["slept"]["points"]
    assert [point["num_bytes"] for point in sweep["points"]] == list(SIZES)
    assert sweep["stopped_because"] is None
    for point in sweep["points"]:
        assert 3 <= len(point["seconds"]) <= NUM_REPEATS
        assert point["median_seconds"] == pytest.approx(float(np.median(point["seconds"])))
        assert min(point["seconds"]) > 0
    assert [point["num_bytes"] for point in short["points"]] == [2**16]
    assert short["stopped_because"].startswith("from 1024 MiB on left out: ")
    # Of a link whose seconds are known it sleeps for them.
    assert [point["num_bytes"] for point in slept] == [2**20, 2**21]
    assert (min(slept[0]["seconds"]) >= 10e-3, min(slept[1]["seconds"]) >= 20e-3) == (True, True)


def test_one_rank_has_nothing_to_all_reduce(alone: Ranks) -> None:
    with pytest.raises(ValueError, match="at least 2 ranks"):
        sweep_exchange(alone, num_repeats=1, seconds_budget=1.0)
