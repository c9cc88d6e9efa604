"""What is read from Linux's own files: written here as other machines have them."""

from dataclasses import replace

import psutil
import pytest

from tasks.machine import host_facts
from tasks.machine.host_checks import check_frequency, check_siblings
from tasks.machine.host_facts import (
    CpuFrequency,
    count_physical_cores,
    is_virtual_machine,
    read_cpu_frequency,
    read_cpu_quota,
    read_free_memory_bytes,
)


@pytest.fixture(autouse=True)
def put(tmp_path, monkeypatch):
    """Return `put(path, text)`: writes a file in the place of this machine's, none of which are read."""
    monkeypatch.setattr(host_facts, "_ROOT", tmp_path)

    def put(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")

    return put


def test_hyper_threads_of_one_core_are_one_physical_core(put):
    for cpu, siblings in enumerate(("0,4", "1,5", "2,6", "3,7") * 2):
        put(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", siblings)
    assert count_physical_cores([0, 1, 2, 3]) == 4
    assert count_physical_cores([0, 4]) == 1
    assert count_physical_cores(list(range(8))) == 4
    assert count_physical_cores([8]) is None


def test_a_virtual_machines_cores_are_not_taken_on_trust(put):
    put("proc/cpuinfo", "processor : 0\nflags : fpu vme hypervisor lahf_lm")
    assert is_virtual_machine()
    assert check_siblings(2, 2, is_virtual=True).verdict == "not checked"
    assert check_siblings(2, 2, is_virtual=False).verdict == "ok"
    assert "hyper-threads of 1 physical core" in check_siblings(2, 1, is_virtual=False).found
    put("proc/cpuinfo", "processor : 0\nflags : fpu vme lahf_lm")
    assert not is_virtual_machine()


def test_the_tightest_quota_of_nested_control_groups_counts(put):
    put("proc/self/cgroup", "0::/kubepods/pod7")
    assert read_cpu_quota() is None
    put("sys/fs/cgroup/kubepods/pod7/cpu.max", "max 100000")
    assert read_cpu_quota() is None
    put("sys/fs/cgroup/kubepods/cpu.max", "250000 100000")
    assert read_cpu_quota() == 2.5
    put("sys/fs/cgroup/kubepods/pod7/cpu.max", "150000 100000")
    assert read_cpu_quota() == 1.5


def test_the_quota_of_version_1_is_read_too(put):
    put("proc/self/cgroup", "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/")
    # Inside a container the folder of the host's path is not there, its content is mounted on top.
    top = "sys/fs/cgroup/cpu,cpuacct"
    put(f"{top}/cpu.cfs_period_us", "100000")
    put(f"{top}/cpu.cfs_quota_us", "-1")
    assert read_cpu_quota() is None
    put(f"{top}/cpu.cfs_quota_us", "50000")
    assert read_cpu_quota() == 0.5


def test_the_control_groups_memory_counts_without_its_cache(put):
    put("proc/self/cgroup", "0::/box")
    machine, whose = read_free_memory_bytes()
    assert whose == "of the machine"
    assert 0 < machine <= psutil.virtual_memory().total
    put("sys/fs/cgroup/box/memory.max", str(2 * 2**20))
    put("sys/fs/cgroup/box/memory.current", str(2**20))
    put("sys/fs/cgroup/box/memory.stat", f"anon 5\ninactive_file {2**18}")
    assert read_free_memory_bytes() == (2**20 + 2**18, "of the control group")
    put("sys/fs/cgroup/box/memory.max", "max")
    assert read_free_memory_bytes()[1] == "of the machine"


def test_governor_cap_and_throttling_are_read(put):
    for cpu, count in ((0, "3"), (1, "4")):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        put(f"{folder}/cpufreq/scaling_governor", "powersave")
        put(f"{folder}/cpufreq/scaling_driver", "acpi-cpufreq")
        put(f"{folder}/cpufreq/scaling_max_freq", "1800000")
        put(f"{folder}/cpufreq/cpuinfo_max_freq", "3600000")
        put(f"{folder}/thermal_throttle/core_throttle_count", count)
    facts = read_cpu_frequency([0, 1])
    assert facts == CpuFrequency(governors=("powersave",), driver="acpi-cpufreq", capped_to=0.5, num_throttled=7)
    nothing = CpuFrequency(governors=(), driver=None, capped_to=None, num_throttled=None)
    assert read_cpu_frequency([9]) == nothing
    assert check_frequency(nothing, nothing, is_on_battery=False).verdict == "not checked"
    assert check_frequency(nothing, nothing, is_on_battery=True).verdict == "warning"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "ok"),
        ({"governors": ("schedutil",)}, "ok"),
        ({"governors": ("powersave",)}, "warning"),
        ({"governors": ("powersave",), "driver": "intel_pstate"}, "ok"),
        ({"capped_to": 0.94}, "warning"),
        ({"num_throttled": 6}, "warning"),
    ],
)
def test_a_clock_that_is_held_down_is_a_warning(changes, verdict):
    before = CpuFrequency(governors=("performance",), driver="acpi-cpufreq", capped_to=1.0, num_throttled=5)
    assert check_frequency(before, replace(before, **changes), is_on_battery=False).verdict == verdict
