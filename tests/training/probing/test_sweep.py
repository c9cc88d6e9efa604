"""The sweep of a link on real ranks: real all-reduces on gloo."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import make_config, make_slice
from tests.training.forked_ranks import ForkedRanks, last_words
from tests.training.probing.sweeps import NUM_REPEATS, SIZES
from training.probing.sweep import sweep_exchange
from training.process.distributed import Ranks


@pytest.fixture(scope="module")
def two(ranks: ForkedRanks, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("two")
    rows = make_slice(root / "0-8", num_rows=8)
    config = make_config(root / "work", tiny_model, [rows], strategy="ddp", world_size=2)
    codes = ranks.launch(config, entry="tests.training.probing.sweeps")
    assert codes == [0, 0], last_words(config)
    return json.loads((root / "work" / "sweeps.json").read_bytes())


def test_a_sweep_times_every_size_that_fits(two: Any) -> None:
    sweep = two["sweep"]
    assert [point["num_bytes"] for point in sweep["points"]] == list(SIZES)
    assert sweep["stopped_because"] is None
    for point in sweep["points"]:
        assert 3 <= len(point["seconds"]) <= NUM_REPEATS
        assert point["median_seconds"] == pytest.approx(float(np.median(point["seconds"])))
        assert min(point["seconds"]) > 0


def test_a_sweep_says_what_it_left_out(two: Any) -> None:
    short = two["short_sweep"]
    assert [point["num_bytes"] for point in short["points"]] == [2**16]
    assert short["stopped_because"].startswith("from 1024 MiB on left out: ")


def test_a_sweep_of_a_link_whose_seconds_are_known_sleeps_for_them(two: Any) -> None:
    slept = two["slept"]["points"]
    assert [point["num_bytes"] for point in slept] == [2**20, 2**21]
    assert min(slept[0]["seconds"]) >= 10e-3
    assert min(slept[1]["seconds"]) >= 20e-3


def test_one_rank_has_nothing_to_all_reduce(alone: Ranks) -> None:
    with pytest.raises(ValueError, match="at least 2 ranks"):
        sweep_exchange(alone, num_repeats=1, seconds_budget=1.0)
