"""What is said of GPUs whose facts are known, as real machines report them."""

import dataclasses
import os

import pytest

from tasks.machine.gpu_checks import (
    check_alike,
    check_clocks,
    check_links,
    check_memory,
    check_others,
    check_pcie,
    judge_gpus,
)
from tasks.machine.gpu_facts import GpuMoment, GpuProcess, LinkFacts, select_visible

T4 = GpuMoment(
    index=0,
    name="Tesla T4",
    utilisation=0.0,
    processes=(),
    memory_total_gib=15.0,
    memory_used_gib=0.3,
    pcie_generation=1,
    pcie_generation_max=3,
    pcie_width=16,
    pcie_width_max=16,
    performance_state=8,
    sm_clock_mhz=300,
    sm_clock_max_mhz=1590,
    slowdowns=(),
    power_limit_watts=70.0,
    power_limit_default_watts=70.0,
    temperature_celsius=41,
)
"""One of two at rest in a cloud machine."""
PAIR = (T4, dataclasses.replace(T4, index=1))
NO_PEER = LinkFacts(
    first=0, second=1, has_nvlink=False, peer="no peer to peer: the GPUs do not support it", path="through one socket"
)


def changed(**facts):
    """The pair with the second one changed."""
    return T4, dataclasses.replace(PAIR[1], **facts)


def test_two_idle_t4s_without_peer_to_peer_are_fit_to_measure():
    checks = judge_gpus(PAIR, [NO_PEER], world_sizes=[1, 2], num_parameters=10**8)
    assert [check.verdict for check in checks] == ["ok"] * 6
    assert {check.code for check in checks} == {"ok"}
    assert all(figure in checks[3].found for figure in ("4.0 GB/s", "15.8 GB/s"))


def test_somebody_elses_process_on_a_gpu_is_named():
    check = check_others(changed(processes=(GpuProcess(pid=os.getpid(), memory_gib=1.0),), memory_used_gib=1.0))
    assert check.verdict == "ok"  # our own
    check = check_others(changed(processes=(GpuProcess(pid=2**22 + 1, memory_gib=1.5),)))
    assert (check.verdict, check.code) == ("warning", "other_processes")
    assert f"(pid {2**22 + 1}, 1.5 GiB)" in check.found


def test_memory_in_use_without_a_process_is_somebody_behind_a_containers_wall():
    assert check_others(changed(processes=(), memory_used_gib=9.0)).code == "unexplained_memory"
    assert check_others(changed(processes=(), utilisation=0.5)).code == "busy"
    assert check_others(changed(processes=(), memory_used_gib=0.6, utilisation=0.01)).verdict == "ok"


@pytest.mark.parametrize("facts", [{"name": "NVIDIA L4"}, {"power_limit_watts": 60.0}, {"sm_clock_max_mhz": 1500}])
def test_gpus_that_are_not_alike_are_a_warning(facts):
    assert check_alike(PAIR).verdict == "ok"
    check = check_alike(changed(**facts))
    assert (check.verdict, check.code) == ("warning", "gpus_differ")


def test_a_narrow_slot_is_a_warning_and_a_slow_link_only_at_work():
    assert check_pcie(changed(pcie_width=4)).code == "narrow_link"
    assert check_pcie(changed(pcie_generation=1, performance_state=8)).verdict == "ok"
    assert check_pcie(changed(pcie_generation=1, performance_state=0)).code == "slow_link"
    assert check_pcie(changed(pcie_generation=3, performance_state=0)).verdict == "ok"


def test_heat_brakes_and_a_lowered_power_limit_are_warnings():
    assert check_clocks(PAIR).verdict == "ok"
    assert check_clocks(changed(slowdowns=("too hot (hardware)",))).code == "slowed_down"
    assert check_clocks(changed(temperature_celsius=88)).code == "slowed_down"
    lowered = check_clocks(changed(power_limit_watts=60.0))
    assert lowered.code == "power_limit"
    assert "nvidia-smi -i 1 --power-limit=70" in str(lowered.remedy)


def nvlinked(first, second, *, is_linked=True):
    return LinkFacts(first=first, second=second, has_nvlink=is_linked, peer="peer to peer", path=None)


def test_the_slowest_of_unlike_links_is_a_warning():
    three = tuple(dataclasses.replace(T4, index=index, nvlinks=4, nvlinks_active=4) for index in range(3))
    alike = [nvlinked(0, 1), nvlinked(0, 2), nvlinked(1, 2)]
    assert check_links(three, alike).verdict == "ok"
    assert check_links(three, [*alike[:2], nvlinked(1, 2, is_linked=False)]).code == "nvlink_between_some"
    one_down = (*three[:2], dataclasses.replace(three[2], nvlinks_active=3))
    check = check_links(one_down, alike)
    assert (check.code, check.numbers["nvlinks_active"]) == ("nvlinks_down", [4, 4, 3])


def test_the_ranks_of_all_cells_must_fit_on_a_gpu_side_by_side():
    # Per rank 1 GiB and 16 bytes x 2^28 parameters = 5 GiB, and a tenth: cells of 1 and 2 ranks put 11 GiB on GPU 0.
    enough = check_memory(PAIR, world_sizes=[1, 2], num_parameters=2**28)
    assert enough.verdict == "ok"
    assert all(figure in enough.found for figure in ("14.7 GiB", "11.0 GiB", "5.5 GiB"))
    assert check_memory(PAIR, world_sizes=[1, 1, 2], num_parameters=2**28).verdict == "warning"
    assert check_memory(PAIR, world_sizes=[6], num_parameters=2**28).verdict == "warning"  # three on each


def test_cuda_visible_devices_chooses_and_orders():
    uuids = ["GPU-aa1", "GPU-bb2", "GPU-cc3"]
    assert select_visible(uuids, None) == [(0, None), (1, None), (2, None)]
    assert select_visible(uuids, "2,0") == [(2, None), (0, None)]
    assert select_visible(uuids, "GPU-bb, 0") == [(1, None), (0, None)]
    assert select_visible(uuids, "1,7,0") == [(1, None)]
    assert select_visible(uuids, "") == []


def test_a_process_sees_one_slice_of_a_gpu_and_then_nothing_else():
    uuids, slices = ["GPU-aa1", "GPU-bb2"], [["MIG-x1", "MIG-y2"], None]
    assert select_visible(uuids, "MIG-y2", slices=slices) == [(0, 1)]
    assert select_visible(uuids, "MIG-y2,MIG-x1", slices=slices) == [(0, 1)]
    assert select_visible(uuids, "MIG-nobody's", slices=slices) == []
    # Whole GPUs are not shown beside a slice, and of a GPU in slices its first is.
    assert select_visible(uuids, None, slices=slices) == [(0, 0)]
    assert select_visible(uuids, "1,0", slices=slices) == [(0, 0)]
    assert select_visible(uuids, "1", slices=slices) == [(1, None)]
    # MIG is on, and nobody has made a slice.
    assert select_visible(uuids, None, slices=[[], None]) == [(1, None)]
