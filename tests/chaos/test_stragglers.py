"""Who is called a straggler, of real ranks."""

import pytest

from tasks.records.outputs import SegmentOutputs
from tasks.records.run import read_segment
from tasks.reporting.straggler import find_slowest_rank
from tests.tiny import make_config, make_slice, make_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def _find_slowest(folder, ranks, fault):
    """Train a hundred steps on two ranks: a few seconds, which are the least in which a straggler can be told."""
    config = make_config(
        folder / "work", make_tiny_model(folder / "model"), [make_slice(folder / "slice", num_rows=1600, min_len=8)],
        strategy="ddp", world_size=2, global_batch_size=16, checkpoint_every_steps=0, log_every_steps=1,
    )  # fmt: skip
    assert ranks.launch(config, fault=fault) == [0, 0]
    (segment,) = (folder / "work" / "segments").iterdir()
    found = find_slowest_rank(SegmentOutputs(segment, read_segment(segment)).read_steps())
    assert found is not None
    return found


def test_a_rank_of_a_third_of_the_speed_is_called_a_straggler(ranks, tmp_path):
    found = _find_slowest(tmp_path, ranks, "rank=1,step=1,kind=slow:3")
    assert (found.is_straggler, found.rank) == (True, 1)
