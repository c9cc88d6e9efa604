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
from tests.tasks.reporting.rendered import lacks

T4 = GpuMoment(
    index=0, name="Tesla T4", utilisation=0.0, processes=(), memory_total_gib=15.0, memory_used_gib=0.3,
    pcie_generation=1, pcie_generation_max=3, pcie_width=16, pcie_width_max=16, performance_state=8, sm_clock_mhz=300,
    sm_clock_max_mhz=1590, slowdowns=(), power_limit_watts=70.0, power_limit_default_watts=70.0, temperature_celsius=41,
)  # fmt: skip
"""One of two at rest in a cloud machine."""
PAIR = (T4, dataclasses.replace(T4, index=1))
NO_PEER = LinkFacts(
    first=0, second=1, has_nvlink=False, peer="no peer to peer: the GPUs do not support it", path="through one socket"
)


def test_two_idle_t4s_without_peer_to_peer_are_fit_to_measure():
    checks = judge_gpus(PAIR, [NO_PEER], world_sizes=[1, 2], num_parameters=10**8)
    assert [check.verdict for check in checks] == ["ok"] * 6
    assert {check.code for check in checks} == {"ok"}
    assert not lacks(checks[3].found, "4.0 GB/s", "15.8 GB/s")


@pytest.mark.parametrize(
    ("check", "facts", "code"),
    [
        (check_others, {"processes": (GpuProcess(pid=os.getpid(), memory_gib=1.0),), "memory_used_gib": 1.0}, "ok"),
        (check_others, {"processes": (GpuProcess(pid=2**22 + 1, memory_gib=1.5),)}, "other_processes"),
        # Somebody behind a container's wall.
        (check_others, {"memory_used_gib": 9.0}, "unexplained_memory"),
        (check_others, {"utilisation": 0.5}, "busy"),
        (check_others, {"memory_used_gib": 0.6, "utilisation": 0.01}, "ok"),
        (check_alike, {"name": "NVIDIA L4"}, "gpus_differ"),
        (check_alike, {"power_limit_watts": 60.0}, "gpus_differ"),
        (check_alike, {"sm_clock_max_mhz": 1500}, "gpus_differ"),
        (check_pcie, {"pcie_width": 4}, "narrow_link"),
        # Slow at rest is saving.
        (check_pcie, {"pcie_generation": 1, "performance_state": 8}, "ok"),
        (check_pcie, {"pcie_generation": 1, "performance_state": 0}, "slow_link"),
        (check_pcie, {"pcie_generation": 3, "performance_state": 0}, "ok"),
        (check_clocks, {"slowdowns": ("too hot (hardware)",)}, "slowed_down"),
        (check_clocks, {"temperature_celsius": 88}, "slowed_down"),
        (check_clocks, {"power_limit_watts": 60.0}, "power_limit"),
    ],
)
def test_what_makes_a_gpu_unfit_is_a_warning_and_what_does_not_is_none(check, facts, code):
    found = check((T4, dataclasses.replace(PAIR[1], **facts)))
    assert (found.verdict, found.code) == ("ok" if code == "ok" else "warning", code)
    says = {"other_processes": "(pid 4194305, 1.5 GiB)", "power_limit": "nvidia-smi -i 1 --power-limit=70"}
    assert says.get(code, "") in f"{found.found} {found.remedy}"


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
    assert not lacks(enough.found, "14.7 GiB", "11.0 GiB", "5.5 GiB")
    assert check_memory(PAIR, world_sizes=[1, 1, 2], num_parameters=2**28).verdict == "warning"
    assert check_memory(PAIR, world_sizes=[6], num_parameters=2**28).verdict == "warning"  # three on each


def test_cuda_visible_devices_chooses_and_orders():
    uuids = ["GPU-aa1", "GPU-bb2", "GPU-cc3"]
    for named, places in ((None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-bb, 0", [1, 0]), ("1,7,0", [1]), ("", [])):
        assert select_visible(uuids, named) == [(place, None) for place in places]


def test_a_process_sees_one_slice_of_a_gpu_and_then_nothing_else():
    uuids, slices = ["GPU-aa1", "GPU-bb2"], [["MIG-x1", "MIG-y2"], None]
    # Whole GPUs are not shown beside a slice, and of a GPU in slices its first is.
    for named, shown in {
        "MIG-y2": [(0, 1)], "MIG-y2,MIG-x1": [(0, 1)], "MIG-nobody's": [], None: [(0, 0)], "1,0": [(0, 0)],
        "1": [(1, None)],
    }.items():  # fmt: skip
        assert select_visible(uuids, named, slices=slices) == shown
    # MIG is on, and nobody has made a slice.
    assert select_visible(uuids, None, slices=[[], None]) == [(1, None)]
