"""Ranks say themselves what they computed on; two on one GPU or core do not pass by there being enough of them."""

from pathlib import Path
from typing import Any

import pytest

from tasks.gates.own_device import check_own_device
from tests.tasks.reporting.blocks import write_blocks
from tests.tasks.reporting.comparison import edit_json, edit_segment, outputs_of, write_comparison


def cores(*numbers: int, **more: Any) -> dict[str, Any]:
    return {"gpu_uuid": None, "cpus": list(numbers), "cpu_quota": None} | more


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        ([cores(0, 1), cores(0, 1)], None),
        ([cores(0), cores(1)], None),
        ([cores(0), cores(0, 1)], None),
        ([cores(0), cores(0)], "ranks 0, 1 with 1 thread each may use 1 core"),
        ([cores(0, 1, cpu_quota=1.5)] * 2, "2 ranks with 1 thread each may use the time of 1.5 cores"),
        ([cores(0, 1, cpu_quota=2.0)] * 2, None),
        ([{"cpus": None}] * 2, None),
        ([], None),
    ],
)
def test_cores_that_two_ranks_share_fail(
    tmp_path: Path, params: dict[str, Any], devices: list[dict[str, Any]], problem: str | None
) -> None:
    edit_segment(tmp_path, "2proc", "8-16", rank_devices=devices)
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == ("failed" if problem else "passed"), found.compared
    assert (problem or "2 of 2 CPUs") in found.compared
    assert check_own_device(outputs_of(tmp_path, params), "1proc").verdict == "passed"


def test_two_ranks_on_one_gpu_fail_though_there_are_two(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, device="cuda")
    edit_json(tmp_path / "machine.json", gpus=[{"name": "T4", "memory_gib": 15.0}] * 2)
    edit_segment(tmp_path, "2proc", rank_devices=[{"gpu_uuid": "aa"}, {"gpu_uuid": "bb"}])
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "passed"
    assert "NUMA" not in found.compared
    near = [{"gpu_uuid": name, "numa_node": node} for name, node in (("aa", 0), ("bb", 1))]
    edit_segment(tmp_path, "1proc", rank_devices=near[:1])
    edit_segment(tmp_path, "2proc", rank_devices=near)
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert "on the cores next to their GPUs, of NUMA node 0 and 1" in found.compared
    edit_segment(tmp_path, "2proc", rank_devices=[{"gpu_uuid": "aa"}, {"gpu_uuid": "aa"}])
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "failed"
    assert "ranks 0, 1 are on one GPU, aa" in found.compared


def test_a_cell_that_is_bound_next_to_its_gpus_where_the_baseline_is_not_fails(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, device="cuda")
    edit_json(tmp_path / "machine.json", gpus=[{"name": "T4", "memory_gib": 15.0}] * 2)
    near, far = [{"gpu_uuid": name, "numa_node": 0} for name in "ab"], [{"gpu_uuid": name} for name in "ab"]

    def judge(first: list[dict[str, Any]], cell: list[dict[str, Any]]) -> str:
        edit_segment(tmp_path, "1proc", rank_devices=first[:1])
        edit_segment(tmp_path, "2proc", rank_devices=cell)
        found = check_own_device(outputs_of(tmp_path, params), "2proc")
        return found.compared if found.verdict == "failed" else ""

    assert not judge(near, near)
    assert not judge(far, far)
    # Started on the cores of one node: what a machine gives is no difference between cells.
    assert not judge(near, [near[0], far[1]])
    assert "2proc ran on the cores next to its GPUs alone, 1proc did not" in judge(far, near)
    assert "1proc ran on the cores next to its GPUs alone, 2proc did not" in judge(near, far)
    assert not judge(near, [])


def test_a_cell_that_is_bound_next_to_its_gpus_in_one_start_alone_fails(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, device="cuda")
    edit_json(tmp_path / "machine.json", gpus=[{"name": "T4", "memory_gib": 15.0}] * 2)
    near, far = [{"gpu_uuid": name, "numa_node": 0} for name in "ab"], [{"gpu_uuid": name} for name in "ab"]
    for cell, number in (("1proc", 1), ("2proc", 2)):
        edit_segment(tmp_path, cell, rank_devices=far[:number])
        edit_segment(tmp_path, cell, "8-16", rank_devices=far[:number])
    assert check_own_device(outputs_of(tmp_path, params), "2proc").verdict == "passed"
    edit_segment(tmp_path, "2proc", "8-16", rank_devices=near)
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "failed"
    assert (
        "2proc ran on the cores next to its GPUs alone in 2proc 8-16 epoch 1, and not in 2proc 0-8 epoch 1: start all "
        "in the same way"
    ) in found.compared


def test_ranks_that_shared_a_core_while_they_were_timed_fail_as_well(tmp_path: Path, params: dict[str, Any]) -> None:
    write_blocks(tmp_path, devices_of_starts={"2proc": [[cores(0), cores(1)], [cores(1), cores(1)]]})
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "failed"
    assert found.compared.startswith("2proc, timed blocks of start 2: ranks 0, 1")
