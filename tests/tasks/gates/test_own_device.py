"""Ranks say themselves what they computed on; two on one GPU or core do not pass by there being enough of them."""

import pytest

from tasks.gates.own_device import check_own_device
from tests.tasks.reporting.blocks import arm_blocks, write_blocks
from tests.tasks.reporting.comparison import edit_json, edit_segment, write_comparison


def devices(*cpus, quota=None):
    """Return what ranks say that may use these cores, and the time of so many."""
    return [{"gpu_uuid": None, "cpus": its, "cpu_quota": quota} for its in cpus]


@pytest.mark.parametrize(
    ("cpus", "quota", "code"),
    [
        (([0, 1], [0, 1]), None, "passed"),
        (([0], [0, 1]), None, "passed"),
        (([0], [0]), None, "too_few_cores"),
        (([0, 1], [0, 1]), 1.5, "cpu_quota"),
        (([0, 1], [0, 1]), 2.0, "passed"),
        ((None, None), None, "passed"),
    ],
)
def test_cores_that_two_ranks_share_fail(tmp_path, expect, cpus, quota, code):
    edit_segment(tmp_path, "2proc", "8-16", rank_devices=devices(*cpus, quota=quota))
    expect(check_own_device, code)
    expect(check_own_device, "passed", "1proc")


@pytest.mark.parametrize(("second", "code"), [("bb", "passed"), ("aa", "one_gpu")])
def test_two_ranks_on_one_gpu_fail_though_there_are_two(tmp_path, expect, second, code):
    write_comparison(tmp_path, device="cuda")
    edit_json(tmp_path / "machine.json", gpus=[{"name": "T4", "memory_gib": 15.0}] * 2)
    edit_segment(tmp_path, "2proc", rank_devices=[{"gpu_uuid": "aa"}, {"gpu_uuid": second}])
    expect(check_own_device, code)


def test_ranks_that_shared_a_core_while_they_were_timed_fail_as_well(tmp_path, expect):
    write_blocks(tmp_path, devices_of_starts={"2proc": [devices([0], [1]), devices([1], [1])]})
    expect(check_own_device, "too_few_cores", where="2proc, timed blocks of launch 2")


@pytest.mark.parametrize(("cores", "code"), [([1.0, 1.05], "passed"), ([1.0, 1.9], "too_many_cores")])
def test_a_timed_rank_that_uses_more_cores_than_it_has_threads_fails(tmp_path, expect, cores, code):
    write_blocks(tmp_path, arm_blocks("2proc, no communication", turn=None, cores_used=cores))
    expect(check_own_device, code)
