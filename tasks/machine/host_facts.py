"""What this machine's Linux says of CPUs, limits and load; where it says nothing, None and never a guess."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_ROOT = Path("/")
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Fields of a CPU's times during which nobody else could use it."""


@dataclass(frozen=True, kw_only=True)
class BusyProcess:
    """A process that is none of ours and used a CPU."""

    pid: int
    name: str
    cores: float
    """CPU seconds per second."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Who used the CPUs that we may use, over a short while."""

    seconds: float
    num_cpus: int
    """CPUs that were watched: those that we may use."""
    ours: float
    """Cores used by this process, its descendants and the processes that it descends from, which wait for it."""
    others: float
    """Cores used by anything else, the kernel and other virtual machines included."""
    stolen: float
    """The part of `others` that went to other virtual machines on the same host."""
    busiest: tuple[BusyProcess, ...]
    """At most ten processes of others that we may see, the busiest first."""


@dataclass(frozen=True, kw_only=True)
class CpuFrequency:
    """What rules the clock of the CPUs that we may use."""

    governors: tuple[str, ...]
    """Their frequency governors, each once; empty where the kernel shows none."""
    driver: str | None
    capped_to: float | None
    """Lowest allowed maximum / the hardware's maximum, 0..1; None where the kernel does not say."""
    num_throttled: int | None
    """Times that the CPUs were slowed down by heat since the machine started; None where it is not counted."""


def list_usable_cpus() -> list[int]:
    """Return the logical CPUs that this process and its children may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def count_physical_cores(cpus: list[int]) -> int | None:
    """Return how many physical cores the logical CPUs belong to; None where the kernel does not say."""
    cores = set()
    for cpu in cpus:
        topology = _ROOT / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read_text(topology / "core_cpus_list") or _read_text(topology / "thread_siblings_list")
        if not siblings:
            return None
        cores.add(siblings)
    return len(cores)


def is_virtual_machine() -> bool:
    """Return True if the CPU says that it runs under a hypervisor."""
    words = _read_text(_ROOT / "proc/cpuinfo").split()
    return "hypervisor" in words


def read_cpu_quota() -> float | None:
    """Return the cores' worth of CPU time that the control groups of this process allow; None if all."""
    quotas = []
    for folder in _list_cgroups("cpu"):
        quota, _, period = _read_text(folder / "cpu.max").partition(" ")  # version 2
        if not period:
            quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # unlimited is "max" or -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def read_free_memory_bytes() -> tuple[int, str]:
    """Return the memory that can still be had without swapping, and whose limit that is."""
    free = [(psutil.virtual_memory().available, "of the machine")]
    for folder in _list_cgroups("memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read_text(folder / limit_name), _read_text(folder / usage_name)
            if limit.isdigit() and usage.isdigit():
                cache = _read_table(folder / "memory.stat").get(cache_name, 0)  # given back when it is needed
                free.append((int(limit) - int(usage) + cache, "of the control group"))
    return min(free)


def read_cpu_frequency(cpus: list[int]) -> CpuFrequency:
    """Return what the kernel says of governor, cap and throttling."""
    governors, caps, throttled = set(), [], []
    driver = None
    for cpu in cpus:
        folder = _ROOT / f"sys/devices/system/cpu/cpu{cpu}"
        scaling = folder / "cpufreq"
        driver = driver or _read_text(scaling / "scaling_driver") or None
        if governor := _read_text(scaling / "scaling_governor"):
            governors.add(governor)
        highest, hardware = _read_text(scaling / "scaling_max_freq"), _read_text(scaling / "cpuinfo_max_freq")
        if highest.isdigit() and hardware.isdigit() and int(hardware):
            caps.append(int(highest) / int(hardware))
        if (count := _read_text(folder / "thermal_throttle/core_throttle_count")).isdigit():
            throttled.append(int(count))
    return CpuFrequency(
        governors=tuple(sorted(governors)),
        driver=driver,
        capped_to=min(caps, default=None),
        num_throttled=sum(throttled) if throttled else None,
    )


def watch_load(seconds: float) -> Load | None:
    """Return who used the CPUs during so many seconds; None where the kernel does not count their time."""
    cpus = list_usable_cpus()
    before, processes_before, started = _read_cpu_seconds(cpus), _read_process_seconds(), time.perf_counter()
    time.sleep(seconds)
    after, processes_after, ended = _read_cpu_seconds(cpus), _read_process_seconds(), time.perf_counter()
    if before is None or after is None or sum(after.values()) <= sum(before.values()):
        return None
    elapsed = ended - started
    cores = {kind: (after[kind] - before[kind]) / elapsed for kind in after}
    ours = list_our_pids()
    used = {
        pid: (seconds_used - processes_before.get(pid, (name, 0.0))[1], name)
        for pid, (name, seconds_used) in processes_after.items()
    }
    by_us = sum(spent for pid, (spent, _) in used.items() if pid in ours) / elapsed
    busiest = sorted(((spent / elapsed, pid, name) for pid, (spent, name) in used.items() if pid not in ours))[::-1]
    return Load(
        seconds=elapsed,
        num_cpus=len(cpus),
        ours=by_us,
        # What is counted in steps of 10 ms can come to a little less than nothing or more than all.
        others=min(max(0.0, sum(cores[kind] for kind in _BUSY) - by_us), float(len(cpus))),
        stolen=cores["steal"],
        busiest=tuple(BusyProcess(pid=pid, name=name, cores=share) for share, pid, name in busiest[:10] if share > 0),
    )


def list_our_pids() -> set[int]:
    """Return the pids of this process, its descendants and the processes that it descends from."""
    me = psutil.Process()
    try:
        return {me.pid, *(child.pid for child in me.children(recursive=True)), *(parent.pid for parent in me.parents())}
    except psutil.Error:  # one of them ended meanwhile
        return {me.pid}


def _read_cpu_seconds(cpus: list[int]) -> dict[str, float] | None:
    """Return the seconds of each kind, added over the CPUs; None where they are not counted."""
    try:
        per_cpu = psutil.cpu_times(percpu=True)
    except (OSError, RuntimeError):
        return None
    watched = [per_cpu[cpu] for cpu in cpus if cpu < len(per_cpu)]
    return {kind: sum(getattr(times, kind, 0.0) for times in watched) for kind in (*_BUSY, "idle", "iowait")}


def _read_process_seconds() -> Mapping[int, tuple[str, float]]:
    """Return name and CPU seconds so far of every process that we may see."""
    results = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            results[process.pid] = (process.info["name"] or "?", times.user + times.system)
    return results


def _list_cgroups(controller: str) -> list[Path]:
    """Return the folders of the control groups that this process is in, for version 1 and 2, innermost first."""
    folders = []
    for line in _read_text(_ROOT / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = _ROOT / "sys/fs/cgroup" / controllers
        inner = top / path.strip("/")
        folders += [inner, *inner.parents[: len(inner.relative_to(top).parts)]]
    return folders


def _read_table(file: Path) -> dict[str, int]:
    """Return the numbers of a file of `name number` lines."""
    pairs = (line.split() for line in _read_text(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read_text(file: Path) -> str:
    """Return what the file holds; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
