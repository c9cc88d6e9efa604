"""Whether this machine's CPUs, memory and disk are fit to measure on."""

from collections.abc import Iterable
from pathlib import Path

import psutil

from tasks.machine.host_facts import (
    CpuFrequency,
    Load,
    count_physical_cores,
    is_virtual_machine,
    list_usable_cpus,
    read_cpu_frequency,
    read_cpu_quota,
    read_free_memory_bytes,
    watch_load,
)
from tasks.params import Params
from tasks.process.wording import format_plural
from tasks.records.measurement import PreflightCheck

LOAD_SECONDS = 1.0
"""How long the load is watched: Linux counts CPU time in steps of 10 ms, so that a second resolves 1 %."""
LARGEST_LOAD = 0.05
"""Share of our CPUs that others may use: a step gets slower by about as much, and speedups are wanted to +-3 %."""
LOADER_THREADS_PER_RANK = 1
"""Threads that make micro-batches ready beside each rank's computation (training/data/prefetch.py)."""
SMALLEST_CAP = 0.95
"""Share of the hardware's highest clock that the CPUs must be allowed: the same 5 % as for the load."""
GIB_PER_RANK = 0.75
"""Memory of a rank before its model: 0.4 GiB of its own after the imports (measured), the rest for buffers."""
BYTES_PER_PARAMETER = 16
"""fp32 weight, gradient and the two moments of AdamW."""
SPARE_MEMORY = 0.10
"""Share of what is needed that must be free beyond it: activations come on top, and a machine that swaps is slow."""
DISK_GIB = 1.0
"""Free space that the work folder needs: logs and events are megabytes, but at a full disk measuring ends."""

_FIXED_GOVERNORS = ("powersave", "conservative", "userspace")
"""Governors that hold the clock down, unless the hardware rules it by itself."""
_SELF_RULED_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers under which `powersave` is only the name of the ordinary mode."""


def check_host(
    params: Params, *, cells: Iterable[str], device: str, folder: Path, num_parameters: int | None = None
) -> list[PreflightCheck]:
    """Return all checks of the host; takes LOAD_SECONDS and little more."""
    names, cpus = list(cells), list_usable_cpus()
    physical = count_physical_cores(cpus)
    before = read_cpu_frequency(cpus)
    load = watch_load(LOAD_SECONDS)
    num_ranks = sum(params.cells[cell].ranks_per_node for cell in names)
    return [
        check_load(load),
        *(
            check_cores(
                cell,
                world_size=params.cells[cell].ranks_per_node,
                threads_per_rank=params.train.threads_per_rank,
                device=device,
                num_cpus=len(cpus),
                num_physical=physical,
                quota=read_cpu_quota(),
            )
            for cell in names
        ),
        check_siblings(len(cpus), physical, is_virtual=is_virtual_machine()),
        check_frequency(before, read_cpu_frequency(cpus), is_on_battery=_is_on_battery()),
        check_memory(num_ranks, device=device, num_parameters=num_parameters),
        check_disk(folder),
    ]


def check_load(load: Load | None) -> PreflightCheck:
    """Judge what others do with the CPUs that the ranks will use."""
    name = "load by others"
    if load is None:
        return PreflightCheck.not_checked(name, "the kernel does not count CPU time")
    share = load.others / load.num_cpus
    found = f"others used {load.others:.2f} of {load.num_cpus} CPUs ({share:.0%}) during {load.seconds:.1f} s"
    if load.stolen > 0.01:
        found += f", {load.stolen:.2f} of it other virtual machines of the same host"
    if share <= LARGEST_LOAD:
        return PreflightCheck.judge(name, f"{found}; up to {LARGEST_LOAD:.0%} is allowed")
    if not load.busiest or load.busiest[0].cores < load.others / 10:
        found += "; short-lived processes, other containers or virtual machines, or the kernel: none to be named"
        return PreflightCheck.judge(name, found, remedy="measure on a machine of your own, or when this one is idle")
    top = load.busiest[0]
    found += ", most of all " + ", ".join(
        f"{one.name} (pid {one.pid}, {one.cores:.2f} CPUs)" for one in load.busiest[:3]
    )
    return PreflightCheck.judge(name, found, remedy=f"end {top.name} (pid {top.pid}) or wait for it, then measure")


def check_cores(
    cell: str,
    *,
    world_size: int,
    threads_per_rank: int,
    device: str,
    num_cpus: int,
    num_physical: int | None,
    quota: float | None,
) -> PreflightCheck:
    """Judge whether every thread of a cell that computes has a physical core of its own.

    On CUDA the loader's threads count as well, since there the rank's own thread must never be kept from launching the
    next kernel; on the CPU they work beside the computation for a small share of a step.
    """
    name = f"cores for {cell}"
    threads, loaders = world_size * threads_per_rank, world_size * LOADER_THREADS_PER_RANK
    needed = threads + (loaders if device == "cuda" else 0)
    limits = [(float(num_cpus), f"{format_plural(num_cpus, 'CPU')} may be used")]
    if num_physical is not None:
        limits.append((float(num_physical), f"of {format_plural(num_physical, 'physical core')}"))
    if quota is not None:
        limits.append((quota, f"the control group allows the time of {quota:.4g}"))
    found = (
        f"world_size {world_size} x threads_per_rank {threads_per_rank} = {threads} to compute, {loaders} for data; "
        + ", ".join(words for _, words in limits)
    )
    cores = min(count for count, _ in limits)
    fitting = int(cores // world_size) - (LOADER_THREADS_PER_RANK if device == "cuda" else 0)
    if needed <= cores:
        remedy = None
    elif fitting >= 1:
        remedy = (
            f"set train.threads_per_rank to {fitting}, or use a machine with {format_plural(needed, 'physical core')}"
        )
    else:
        remedy = (
            f"use a machine with {format_plural(needed, 'physical core')}; here {cell} cannot show what they would give"
        )
    return PreflightCheck.judge(name, found, remedy=remedy)


def check_siblings(num_cpus: int, num_physical: int | None, *, is_virtual: bool) -> PreflightCheck:
    """Say whether the CPUs share physical cores, or that it cannot be known."""
    name = "physical cores"
    if num_physical is None:
        return PreflightCheck.not_checked(name, "the kernel does not show which CPUs share a physical core")
    if num_physical < num_cpus:  # check_cores says whether that matters
        return PreflightCheck.judge(
            name, f"{num_cpus} CPUs are hyper-threads of {format_plural(num_physical, 'physical core')}"
        )
    if is_virtual:
        return PreflightCheck.not_checked(
            name,
            f"{format_plural(num_cpus, 'CPU')} of a virtual machine: whether they share physical cores does not show "
            "from inside; how much copies slow each other down has to be measured",
        )
    return PreflightCheck.judge(name, f"{format_plural(num_cpus, 'CPU')}, each a physical core")


def check_frequency(before: CpuFrequency, after: CpuFrequency, *, is_on_battery: bool) -> PreflightCheck:
    """Judge whether the CPUs may run at their full clock; `before` and `after` enclose the watching of the load."""
    name = "CPU frequency"
    if is_on_battery:
        return PreflightCheck.judge(name, "the machine runs on its battery, which slows CPUs down", remedy="plug it in")
    if not after.governors and after.capped_to is None and after.num_throttled is None:
        return PreflightCheck.not_checked(
            name, "the kernel shows neither governor nor throttling, as in most virtual machines"
        )
    new = (after.num_throttled or 0) - (before.num_throttled or 0)
    found = f"governor {', '.join(after.governors) or 'not shown'} ({after.driver or 'driver not shown'})"
    if after.capped_to is not None:
        found += f", at most {after.capped_to:.0%} of the highest clock"
    if after.num_throttled is not None:
        found += f", slowed down by heat {after.num_throttled} times since the start, {new} of them just now"
    slow = sorted(set(after.governors) & set(_FIXED_GOVERNORS))
    remedy = None
    if slow and after.driver not in _SELF_RULED_DRIVERS:
        remedy = "set the governor to performance (cpupower frequency-set -g performance)"
    elif after.capped_to is not None and after.capped_to < SMALLEST_CAP:
        remedy = "allow the highest clock (cpupower frequency-set --max)"
    elif new > 0:
        remedy = "let the machine cool down or cool it better, then measure"
    return PreflightCheck.judge(name, found, remedy=remedy)


def check_memory(num_ranks: int, *, device: str, num_parameters: int | None) -> PreflightCheck:
    """Judge whether the ranks of all cells fit into memory side by side, as they wait for their turns."""
    name = "free memory"
    free, whose = read_free_memory_bytes()
    model = BYTES_PER_PARAMETER * (num_parameters or 0) if device == "cpu" else 0
    needed_gib = num_ranks * (GIB_PER_RANK + model / 2**30) * (1 + SPARE_MEMORY)
    ranks = format_plural(num_ranks, "rank")
    found = f"{free / 2**30:.1f} GiB {whose} are free, {ranks} side by side need about {needed_gib:.1f} GiB"
    if device == "cpu" and num_parameters is None:
        found += " without their models"
    remedy = "end other programs, take a smaller model, or measure fewer cells at once"
    return PreflightCheck.judge(name, found, remedy=None if free / 2**30 >= needed_gib else remedy)


def check_disk(folder: Path, *, needed_gib: float = DISK_GIB) -> PreflightCheck:
    """Judge the free space where the work folder is or will be."""
    name = "free disk"
    there = next(part for part in (folder.resolve(), *folder.resolve().parents) if part.exists())
    free_gib = psutil.disk_usage(str(there)).free / 2**30
    # The report is published: where the project stands on this machine is nobody's business.
    here = there.relative_to(Path.cwd()) if there.is_relative_to(Path.cwd()) else there
    found = f"{free_gib:.1f} GiB are free in {here}, {needed_gib:.1f} GiB are needed"
    remedy = f"free {needed_gib - free_gib:.1f} GiB there, then measure"
    return PreflightCheck.judge(name, found, remedy=None if free_gib >= needed_gib else remedy)


def _is_on_battery() -> bool:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return battery is not None and battery.power_plugged is False
