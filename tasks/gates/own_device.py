"""Has every rank a device of its own? What the ranks themselves say that they computed on."""

import math
from collections import Counter
from collections.abc import Sequence

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.records.outputs import Outputs
from training.record.segment_facts import RankDevice

_MOST_CORES = 1.1
"""Cores that a rank may use for each of its threads where it neither exchanges nor loads: who uses more has threads
that nobody gave it, or a slow clock. Right ones used 0.93 to 1.01."""


def check_own_device(outputs: Outputs, cell: str) -> Finding:
    """Check that no rank of the cell shares a GPU or, on the CPU, a core with another: in training, and in blocks."""
    facts = outputs.runs[cell].facts
    # Of several nodes, each with as many ranks, the one that has least.
    ranks = facts.world_size // facts.num_nodes
    if facts.device == "cuda":
        there = min([len(outputs.machine.gpus), *(len(node.gpus) for node in facts.nodes)])
        needed, what = ranks, "GPUs"
    else:
        there = min([outputs.machine.num_cpus, *(node.num_cpus for node in facts.nodes)])
        needed, what = ranks * facts.threads_per_rank, "CPUs"
    if facts.num_nodes > 1:
        what += " per node"
    too_few = explain(
        "too_few_devices",
        "{cell} needs {needed} {devices} and shares {there}: a cell whose ranks share devices says nothing "
        "about scaling",
        cell=cell, needed=needed, devices=what, there=there,
    )  # fmt: skip
    launches = {segment.title: segment.facts.rank_devices for segment in outputs.runs[cell].segments}
    if outputs.measurement is not None:
        for number, devices in enumerate(outputs.measurement.devices_of_starts.get(cell, []), start=1):
            launches[f"{cell}, timed blocks of launch {number}"] = devices
    shared: dict[str, Reason] = {}
    for where, devices in launches.items():
        for first in range(0, len(devices), ranks):
            problem = _find_shared_device(devices[first : first + ranks], first=first, threads=facts.threads_per_rank)
            if problem:
                shared.setdefault(problem.sentence, problem.extend("{where}: {sentence}", where=where))
    if facts.device == "cpu" and outputs.measurement is not None:
        for arm in outputs.measurement.blocks:
            used = [max(block.cores_used) for block in arm.blocks if block.cores_used]
            is_computing = arm.cell == cell and arm.kind in ("silent", "independent", "alone") and used
            if is_computing and (cores := sum(used) / len(used)) > _MOST_CORES * facts.threads_per_rank:
                shared[arm.arm] = explain(
                    "too_many_cores", "{arm}: a rank with {threads:plural thread} used the time of {cores:.2f} cores",
                    arm=arm.arm, threads=facts.threads_per_rank, cores=cores,
                )  # fmt: skip
    num_asked = sum(len(devices) == facts.world_size for devices in launches.values())
    seen = "; by what the ranks said of themselves {times_asked:plural time}, none shared one"
    return make_finding(
        [too_few] * (needed > there) + list(shared.values()),
        "{cell} {needed} of {there} {devices}" + seen * bool(num_asked),
            cell=cell, needed=needed, there=there, devices=what, times_asked=num_asked,
    )  # fmt: skip


def _find_shared_device(devices: Sequence[RankDevice], *, first: int, threads: int) -> Reason | None:
    """Return what the ranks of one node share; `first`: the number of the first of them."""
    uuids = Counter(device.gpu_uuid for device in devices if device.gpu_uuid is not None)
    for uuid, number in uuids.items():
        if number > 1:
            names = [str(first + index) for index, device in enumerate(devices) if device.gpu_uuid == uuid]
            return explain("one_gpu", "ranks {ranks} are on one GPU, {gpu}", ranks=names, gpu=uuid)
    allowed = [frozenset(device.cpus) for device in devices if device.cpus]
    if uuids or len(allowed) < len(devices):
        return None
    # Whoever may use nothing but these cores has to find room on them.
    for cores in {*allowed, frozenset[int]().union(*allowed)}:
        within = [str(first + index) for index, item in enumerate(allowed) if item <= cores]
        if threads * len(within) > len(cores):
            return explain(
                "too_few_cores",
                "rank" + "s" * (len(within) > 1) + " {ranks} with {threads:plural thread} each may use "
                "{cores:plural core}",
                ranks=within, threads=threads, cores=len(cores),
            )  # fmt: skip
    quota = min((device.cpu_quota for device in devices if device.cpu_quota is not None), default=math.inf)
    if quota < threads * len(devices):
        return explain(
            "cpu_quota",
            "{ranks:plural rank} with {threads:plural thread} each may use the time of {quota:g} cores (quota of their "
            "control group)",
            ranks=len(devices), threads=threads, quota=quota,
        )  # fmt: skip
    return None
