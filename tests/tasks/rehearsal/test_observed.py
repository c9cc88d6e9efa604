"""What ranks really hold in a step on the CPU, against what is known of its parts and what a rehearsal says of it."""

import json

import pytest

from tests.gpu.steps import read_told
from tests.tiny import make_config, make_slice, make_tiny_model
from training.probing.live_memory import KINDS
from training.registry import list_strategies
from training.rehearsal.rehearsed_step import rehearse_step
from training.strategies import find_traits

pytestmark = pytest.mark.slow

SIZES = {name: 1 if name == "single" else 2 for name in list_strategies() if not find_traits(name).no_rehearsal}


def _observe(ranks, folder, **changes):
    """Return what each rank says, and the config."""
    model = make_tiny_model(folder / "model", vocab_size=512, hidden_size=64, num_layers=4)
    slices = [make_slice(folder / "slice", num_rows=48, min_len=16, max_len=32, vocab_size=512)]
    told = make_config(folder / "work", model, slices, global_batch_size=16, micro_batch_size=4, **changes)
    assert ranks.launch(told, entry="tests.training.observing") == [0] * told["world_size"]
    found = [json.loads((folder / "work" / f"observed-{rank}.json").read_bytes()) for rank in range(told["world_size"])]
    return found, told


@pytest.mark.parametrize("strategy", SIZES)
def test_what_each_rank_holds_in_a_step_is_what_a_rehearsal_says_of_it(strategy, ranks, tmp_path):
    found, told = _observe(ranks, tmp_path, strategy=strategy, world_size=SIZES[strategy])
    for rank, one in enumerate(found):
        assert set(one["parts"]) == set(KINDS)
        assert one["allocated_bytes"] == sum(one["parts"].values())
        assert one["reserved_bytes"] is None
        # The process has all of it, and torch beside it.
        assert one["host_bytes"] > one["allocated_bytes"]
        assert one["host_before_bytes"] > 0
        step = rehearse_step(read_told(told, tmp_path), capability=None, rank=rank)
        for kind in ("weights", "gradients", "moments"):
            assert one["parts"][kind] == pytest.approx(step.peak_bytes[kind], rel=0.1), kind
        assert one["allocated_bytes"] == pytest.approx(step.total_bytes, rel=0.1)
