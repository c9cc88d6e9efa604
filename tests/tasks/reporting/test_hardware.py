"""What machine and link did while the speed was measured: every figure is that of a block, and nothing is made up."""

from pathlib import Path

import pytest

from tasks.measuring.session import compute_link_speed
from tasks.records.measurement import MeasurementFile
from tasks.reporting.collect import collect_results
from tasks.reporting.hardware import collect_hardware
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import outputs_of, write_comparison
from tests.tasks.reporting.measured import write_measurement


@pytest.fixture
def written(tmp_path: Path) -> tuple[Results, MeasurementFile]:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path)
    return collect_results(outputs_of(tmp_path, params)), MeasurementFile.read(tmp_path / "measurements")


def test_every_block_of_a_speedup_has_a_reading_of_each_rank(written: tuple[Results, MeasurementFile]) -> None:
    results, found = written
    assert [one.cell for one in results.hardware] == ["1proc", "2proc"]
    (blocks,) = [arm.blocks for arm in found.blocks if (arm.phase, arm.arm) == ("speedup", "2proc")]
    (readings,) = [one.readings for one in results.hardware if one.cell == "2proc"]
    assert [one.started_at for one in readings] == [block.started_at for block in blocks]
    assert [one.host_gib for one in readings] == [[0.5, 0.6]] * len(blocks)
    assert (readings[0].cores_used, readings[0].gpu_watts) == (blocks[0].cores_used, None)


def test_of_very_many_blocks_some_are_left_out_and_of_an_earlier_version_all(
    written: tuple[Results, MeasurementFile],
) -> None:
    _, found = written
    arm = next(one for one in found.blocks if one.arm == "2proc" and one.phase == "speedup")
    many = arm.model_copy(update={"blocks": arm.blocks * 200})
    (thinned,) = collect_hardware(found.model_copy(update={"blocks": [many]}))
    assert 100 < len(thinned.readings) <= 240
    old = arm.model_copy(update={"blocks": [one.model_copy(update={"started_at": None}) for one in arm.blocks]})
    assert collect_hardware(found.model_copy(update={"blocks": [old]})) == []


def test_bus_bandwidth_is_that_of_the_largest_exchange_as_nccl_tests_counts_it() -> None:
    points = [{"num_bytes": 1e6, "median_seconds": 1e-3}, {"num_bytes": 4e8, "median_seconds": 0.1}]
    sweep = {"kind": "all_reduce", "world_size": 4, "backend": "nccl", "is_slept_for": False, "points": points}
    speed = compute_link_speed(sweep)
    assert speed is not None
    # Each byte of an all-reduce goes over a link 2 (n - 1) / n times: 1.5 x 0.4 GB in 0.1 s.
    assert speed.bus_gb_per_second == pytest.approx(6.0)
    assert compute_link_speed({**sweep, "points": []}) is None
