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
    edit_segment(tmp_path, "2proc", rank_devices=[{"gpu_uuid": "aa"}, {"gpu_uuid": "aa"}])
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "failed"
    assert "ranks 0, 1 are on one GPU, aa" in found.compared


def test_ranks_that_shared_a_core_while_they_were_timed_fail_as_well(tmp_path: Path, params: dict[str, Any]) -> None:
    write_blocks(tmp_path, devices_of_starts={"2proc": [[cores(0), cores(1)], [cores(1), cores(1)]]})
    found = check_own_device(outputs_of(tmp_path, params), "2proc")
    assert found.verdict == "failed"
    assert found.compared.startswith("2proc, timed blocks of start 2: ranks 0, 1")
