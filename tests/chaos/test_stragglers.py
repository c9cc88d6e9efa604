"""Who is called a straggler, of real ranks: their layers sleep, whatever else the machine does."""

import pytest

from tasks.records.outputs import SegmentOutputs
from tasks.records.run import read_segment
from tasks.reporting.straggler import find_slowest_rank
from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from tests.tiny import make_config, make_slice


@pytest.mark.slow
def test_a_rank_of_a_third_of_the_speed_is_called_a_straggler(ranks, tmp_path):
    # 24 ms per micro-batch: 25 steps of two, three times as long, are more than the two seconds that are needed.
    device = EmulatedDevice(forward_ms=4)
    config = make_config(
        tmp_path / "work", write_device(tmp_path / "model", device), [make_slice(tmp_path / "slice", num_rows=200)],
        workload=WORKLOAD, strategy="ddp", world_size=2,
    )  # fmt: skip
    assert ranks.launch(config, fault="rank=1,step=1,kind=slow:3") == [0, 0]
    (segment,) = (tmp_path / "work" / "segments").iterdir()
    found = find_slowest_rank(SegmentOutputs(segment, read_segment(segment)).read_steps())
    assert (found.is_straggler, found.rank) == (True, 1)
