"""Whether this machine's CPUs, memory and disk are fit to measure on."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psutil

from ddp_audit.process.wording import explain
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
"""Share of our CPUs that others may use: a step gets slower by about as much, and speedups are wanted to ±3 %."""
LOADER_THREADS_PER_RANK = 1
"""Threads that make micro-batches ready beside each rank's computation (training/data/batches.py)."""
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
    battery = None
    with contextlib.suppress(AttributeError, OSError):  # a system, or a kernel, without any
        battery = psutil.sensors_battery()
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
        check_frequency(
            before, read_cpu_frequency(cpus), is_on_battery=battery is not None and battery.power_plugged is False
        ),
        check_memory(num_ranks, device=device, num_parameters=num_parameters),
        check_disk(folder),
    ]


def check_load(load: Load | None) -> PreflightCheck:
    """Judge what others do with the CPUs that the ranks will use."""
    name = "load by others"
    if load is None:
        return PreflightCheck.not_checked(name, "not_counted", "the kernel does not count CPU time")
    share = load.others / load.num_cpus
    finding = explain(
        "loud",
        "others used {others:.2f} of {cpus} CPUs ({share:.0%}) during {seconds:.1f} s"
        + ", {stolen:.2f} of it other virtual machines of the same host" * (load.stolen > 0.01),
        others=load.others, cpus=load.num_cpus, share=share, seconds=load.seconds, stolen=load.stolen,
    )  # fmt: skip
    if share <= LARGEST_LOAD:
        return PreflightCheck.judge(name, finding.extend("{sentence}; up to {most:.0%} is allowed", most=LARGEST_LOAD))
    if not load.busiest or load.busiest[0].cores < load.others / 10:
        none = "; short-lived processes, other containers or virtual machines, or the kernel: none to be named"
        return PreflightCheck.judge(
            name,
            finding.extend("{sentence}" + none),
            remedy="measure on a machine of your own, or when this one is idle",
        )
    top = load.busiest[0]
    busiest = [f"{item.name} (pid {item.pid}, {item.cores:.2f} CPUs)" for item in load.busiest[:3]]
    return PreflightCheck.judge(
        name,
        replace(finding, code="loud_process").extend("{sentence}, most of all {busiest}", busiest=busiest),
        remedy=f"end {top.name} (pid {top.pid}) or wait for it, then measure",
    )


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
    finding = explain(
        "too_few_cores",
        "world_size {world_size} x threads_per_rank {threads_per_rank} = {threads} to compute, {loaders} for data; "
        "{cpus:plural CPU} may be used"
        + ", of {physical:plural physical core}" * (num_physical is not None)
        + ", the control group allows the time of {quota:.4g}" * (quota is not None),
        world_size=world_size, threads_per_rank=threads_per_rank, threads=threads, loaders=loaders, cpus=num_cpus,
        physical=num_physical, quota=quota, needed=needed,
    )  # fmt: skip
    cores = min(count for count in (num_cpus, num_physical, quota) if count is not None)
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
    return PreflightCheck.judge(name, finding, remedy=remedy)


def check_siblings(num_cpus: int, num_physical: int | None, *, is_virtual: bool) -> PreflightCheck:
    """Say whether the CPUs share physical cores, or that it cannot be known."""
    name = "physical cores"
    if num_physical is None:
        return PreflightCheck.not_checked(
            name, "not_shown", "the kernel does not show which CPUs share a physical core"
        )
    if num_physical < num_cpus:  # check_cores says whether that matters
        text = "{cpus} CPUs are hyper-threads of {physical:plural physical core}"
        return PreflightCheck.judge(name, explain("ok", text, cpus=num_cpus, physical=num_physical))
    if is_virtual:
        return PreflightCheck.not_checked(
            name,
            "virtual_machine",
            f"{format_plural(num_cpus, 'CPU')} of a virtual machine: whether they share physical cores does not show "
            "from inside; how much copies slow each other down has to be measured",
        )
    return PreflightCheck.judge(name, explain("ok", "{cpus:plural CPU}, each a physical core", cpus=num_cpus))


def check_frequency(before: CpuFrequency, after: CpuFrequency, *, is_on_battery: bool) -> PreflightCheck:
    """Judge whether the CPUs may run at their full clock; `before` and `after` enclose the watching of the load."""
    name = "CPU frequency"
    if is_on_battery:
        finding = explain("battery", "the machine runs on its battery, which slows CPUs down")
        return PreflightCheck.judge(name, finding, remedy="plug it in")
    if not after.governors and after.capped_to is None and after.num_throttled is None:
        return PreflightCheck.not_checked(
            name, "not_shown", "the kernel shows neither governor nor throttling, as in most virtual machines"
        )
    new = (after.num_throttled or 0) - (before.num_throttled or 0)
    slow = sorted(set(after.governors) & set(_FIXED_GOVERNORS))
    code, remedy = "ok", None
    if slow and after.driver not in _SELF_RULED_DRIVERS:
        code, remedy = "slow_governor", "set the governor to performance (cpupower frequency-set -g performance)"
    elif after.capped_to is not None and after.capped_to < SMALLEST_CAP:
        code, remedy = "capped", "allow the highest clock (cpupower frequency-set --max)"
    elif new > 0:
        code, remedy = "throttled", "let the machine cool down or cool it better, then measure"
    finding = explain(
        code,
        "governor {governor} ({driver})"
        + ", at most {capped_to:.0%} of the highest clock" * (after.capped_to is not None)
        + ", slowed down by heat {throttled} times since the start, {new} of them just now"
        * (after.num_throttled is not None),
        governor=", ".join(after.governors) or "not shown", driver=after.driver or "driver not shown",
        capped_to=after.capped_to, throttled=after.num_throttled, new=new,
    )  # fmt: skip
    return PreflightCheck.judge(name, finding, remedy=remedy)


def check_memory(num_ranks: int, *, device: str, num_parameters: int | None) -> PreflightCheck:
    """Judge whether the ranks of all cells fit into memory side by side, as they wait for their turns."""
    name = "free memory"
    free, whose = read_free_memory_bytes()
    model = BYTES_PER_PARAMETER * (num_parameters or 0) if device == "cpu" else 0
    needed_gib = num_ranks * (GIB_PER_RANK + model / 2**30) * (1 + SPARE_MEMORY)
    finding = explain(
        "too_little_memory",
        "{free_gib:.1f} GiB {whose} are free, {ranks:plural rank} side by side need about {needed_gib:.1f} GiB"
        + " without their models" * (device == "cpu" and num_parameters is None),
        free_gib=free / 2**30, whose=whose, ranks=num_ranks, needed_gib=needed_gib,
    )  # fmt: skip
    remedy = "end other programs, take a smaller model, or measure fewer cells at once"
    return PreflightCheck.judge(name, finding, remedy=None if free / 2**30 >= needed_gib else remedy)


def check_disk(folder: Path, *, needed_gib: float = DISK_GIB) -> PreflightCheck:
    """Judge the free space where the work folder is or will be."""
    name = "free disk"
    there = next(part for part in (folder.resolve(), *folder.resolve().parents) if part.exists())
    free_gib = psutil.disk_usage(str(there)).free / 2**30
    # The report is published: where the project stands on this machine is nobody's business.
    here = there.relative_to(Path.cwd()) if there.is_relative_to(Path.cwd()) else there
    finding = explain(
        "too_little_disk", "{free_gib:.1f} GiB are free in {folder}, {needed_gib:.1f} GiB are needed",
        free_gib=free_gib, folder=str(here), needed_gib=needed_gib,
    )  # fmt: skip
    remedy = f"free {needed_gib - free_gib:.1f} GiB there, then measure"
    return PreflightCheck.judge(name, finding, remedy=None if free_gib >= needed_gib else remedy)
