"""Whether the GPUs, and the links between them, are fit to measure on."""

import itertools
from collections.abc import Sequence

import psutil

from ddp_audit.process.wording import explain
from tasks.machine.gpu_facts import SWITCHED_OFF, GpuMoment, LinkFacts, open_gpus, read_gpu, read_link
from tasks.machine.host_checks import BYTES_PER_PARAMETER, SPARE_MEMORY
from tasks.machine.host_facts import list_our_pids
from tasks.process.failure import ResourceError
from tasks.process.wording import format_plural
from tasks.records.measurement import PreflightCheck

LARGEST_UTILISATION = 0.05
"""Share of the time in which kernels of others may run: the same 5 % as for the CPUs."""
LARGEST_UNEXPLAINED_GIB = 1.0
"""Memory in use without a process to be seen: a driver keeps up to some hundred MiB, a training takes more."""
GIB_PER_CONTEXT = 1.0
"""Device memory of a rank before its model: CUDA's context, cuBLAS workspaces and NCCL's buffers."""
IN_PIECES = 0.05
"""Share by which what torch has reserved is above what is allocated, in whole pieces of memory."""
SMALLEST_POWER_LIMIT = 0.95
"""Share of the usual power limit that the GPU must be allowed."""
HOTTEST_AT_REST_CELSIUS = 80
"""Data-centre GPUs slow down at 85 to 95 degrees Celsius; one that is this hot before it works will."""
_AT_REST = 8
"""Performance states from here on are those of a GPU at rest, which slows its link down to save power."""
_GB_PER_SECOND_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""By generation of PCIe, one direction; PCI-SIG's transfer rates x line code."""


def compute_needed_gib(allocated_gib: float, reserved_gib: float | None = None) -> float:
    """Return what a rank needs of a card: what torch reserved, or is likely to reserve, and a context."""
    return ((1 + IN_PIECES) * allocated_gib if reserved_gib is None else reserved_gib) + GIB_PER_CONTEXT


def check_gpus(world_sizes: Sequence[int], *, num_parameters: int | None = None) -> list[PreflightCheck]:
    """Return all checks of the GPUs that cells of these sizes will use."""
    try:
        with open_gpus() as opened:
            if opened.problem:
                return [PreflightCheck.not_checked("GPUs", "not_there", opened.problem)]
            handles = opened.handles[: max(world_sizes)]
            gpus = [read_gpu(handle, index) for index, handle in enumerate(handles)]
            links = [
                read_link(handles[first], handles[second], indices=(first, second))
                for first, second in itertools.combinations(range(len(handles)), 2)
            ]
    except ResourceError as error:
        return [PreflightCheck.not_checked("GPUs", "driver_silent", str(error))]
    return judge_gpus(gpus, links, world_sizes=world_sizes, num_parameters=num_parameters)


def judge_gpus(
    gpus: Sequence[GpuMoment],
    links: Sequence[LinkFacts],
    *,
    world_sizes: Sequence[int],
    num_parameters: int | None = None,
) -> list[PreflightCheck]:
    """Return all checks of GPUs whose facts are known."""
    return [
        check_others(gpus),
        check_alike(gpus),
        check_links(gpus, links),
        check_pcie(gpus),
        check_clocks(gpus),
        check_memory(gpus, world_sizes=world_sizes, num_parameters=num_parameters),
    ]


def check_others(gpus: Sequence[GpuMoment]) -> PreflightCheck:
    """Judge what others do on the GPUs."""
    name = "other processes on the GPUs"
    if all(gpu.processes is None and gpu.utilisation is None for gpu in gpus):
        return PreflightCheck.not_checked(name, "not_shown", "the driver shows neither processes nor utilisation")
    ours, results, code = list_our_pids(), [], ""
    for gpu in gpus:
        others = [process for process in gpu.processes or () if process.pid not in ours]
        used = gpu.memory_used_gib or 0.0
        words = ["no other process" if gpu.processes is not None else "processes not shown"]
        if others:
            code = "other_processes"
            words = [_describe_process(process.pid, process.memory_gib) for process in others]
        elif used > LARGEST_UNEXPLAINED_GIB:
            code = code or "unexplained_memory"
            words = [f"{used:.1f} GiB in use by processes that cannot be seen from here"]
        if gpu.utilisation is not None:
            words.append(f"busy {gpu.utilisation:.0%} of the time")
            code = code or "busy" * (gpu.utilisation > LARGEST_UTILISATION)
        results.append(f"GPU {gpu.index}: {', '.join(words)}")
    remedy = "end these processes, or leave their GPUs out with CUDA_VISIBLE_DEVICES"
    finding = explain(
        code, "{gpus}", gpus="; ".join(results), utilisations=[gpu.utilisation for gpu in gpus],
        used_gib=[gpu.memory_used_gib for gpu in gpus],
    )  # fmt: skip
    return PreflightCheck.judge(name, finding, remedy=remedy if code else None)


def check_alike(gpus: Sequence[GpuMoment]) -> PreflightCheck:
    """Judge whether all GPUs are of one kind and set alike, since the slowest sets the pace."""
    name = "GPUs of one kind"
    kinds = [(gpu.name, gpu.sm_clock_max_mhz, gpu.power_limit_watts, gpu.memory_total_gib) for gpu in gpus]
    described = [
        f"{gpu.name} ({_format_number(gpu.sm_clock_max_mhz)} MHz, {_format_number(gpu.power_limit_watts)} W, "
        f"{_format_number(gpu.memory_total_gib)} GiB at most)"
        for gpu in gpus
    ]
    if len(set(kinds)) == 1:
        return PreflightCheck.judge(name, explain("ok", "{number} x {kind}", number=len(gpus), kind=described[0]))
    text = "; ".join(f"GPU {gpu.index}: {words}" for gpu, words in zip(gpus, described, strict=True))
    return PreflightCheck.judge(
        name,
        explain("gpus_differ", "{gpus}", gpus=text),
        remedy="choose GPUs of one kind with CUDA_VISIBLE_DEVICES and set them alike",
    )


def check_links(gpus: Sequence[GpuMoment], links: Sequence[LinkFacts]) -> PreflightCheck:
    """Judge the ways between the GPUs: all alike, and none switched off.

    A machine without NVLink or peer to peer is fit to measure: what it costs is a result.
    """
    name = "links between GPUs"
    if len(gpus) < 2:
        return PreflightCheck.judge(name, explain("ok", "one GPU, nothing to link"))
    if all(link.has_nvlink is None and link.peer is None and link.path is None for link in links):
        return PreflightCheck.not_checked(name, "not_shown", "the driver does not show them")
    kinds: dict[str, list[str]] = {}
    for link in links:
        kinds.setdefault(link.kind, []).append(f"{link.first}-{link.second}")
    text = "; ".join(f"{', '.join(pairs)}: {kind}" for kind, pairs in kinds.items())
    active = {gpu.nvlinks_active for gpu in gpus}
    if any(gpu.nvlinks for gpu in gpus):
        text += "; NVLinks up: " + ", ".join(f"GPU {gpu.index} {gpu.nvlinks_active} of {gpu.nvlinks}" for gpu in gpus)
    code, remedy = "ok", None
    if any(link.peer == SWITCHED_OFF for link in links):
        code, remedy = "peer_switched_off", "switch peer to peer on again in the driver's registry settings"
    elif len({link.has_nvlink for link in links}) > 1:
        code = "nvlink_between_some"
        remedy = "choose GPUs that NVLink joins all with each other by CUDA_VISIBLE_DEVICES"
    elif len(active) > 1:
        code, remedy = "nvlinks_down", "look for NVLinks that are down (nvidia-smi nvlink --status)"
    finding = explain(code, "{links}", links=text, nvlinks_active=[gpu.nvlinks_active for gpu in gpus])
    return PreflightCheck.judge(name, finding, remedy=remedy)


def check_pcie(gpus: Sequence[GpuMoment]) -> PreflightCheck:
    """Judge each GPU's PCIe link against what it and its slot can do together."""
    name = "PCIe links"
    if all(gpu.pcie_width is None or gpu.pcie_width_max is None for gpu in gpus):
        return PreflightCheck.not_checked(name, "not_shown", "the driver does not show generation and width")
    results, code = [], ""
    for gpu in gpus:
        words = (
            f"GPU {gpu.index}: {_describe_link(gpu.pcie_generation, gpu.pcie_width)} of "
            f"{_describe_link(gpu.pcie_generation_max, gpu.pcie_width_max)}"
        )
        is_narrow = _is_below(gpu.pcie_width, gpu.pcie_width_max)
        is_slow = _is_below(gpu.pcie_generation, gpu.pcie_generation_max)
        is_at_rest = gpu.performance_state is not None and gpu.performance_state >= _AT_REST
        if is_slow and is_at_rest:
            words += ", slowed down while it is at rest"
        code = code or ("narrow_link" if is_narrow else "slow_link" * (is_slow and not is_at_rest))
        results.append(words)
    remedy = "seat the card in a slot with all lanes, and look at riser and BIOS settings"
    finding = explain(code, "{links}", links="; ".join(results), widths=[gpu.pcie_width for gpu in gpus])
    return PreflightCheck.judge(name, finding, remedy=remedy if code else None)


def check_clocks(gpus: Sequence[GpuMoment]) -> PreflightCheck:
    """Judge whether something holds the GPUs' clocks down."""
    name = "GPU clocks"
    if all(gpu.slowdowns is None and gpu.power_limit_watts is None for gpu in gpus):
        return PreflightCheck.not_checked(
            name, "not_shown", "the driver shows neither reasons for slowing down nor power limits"
        )
    results, remedies, codes = [], [], []
    for gpu in gpus:
        words = [f"{_format_number(gpu.sm_clock_mhz)} of {_format_number(gpu.sm_clock_max_mhz)} MHz"]
        if gpu.temperature_celsius is not None:
            words.append(f"{gpu.temperature_celsius} degrees Celsius")
        limit, usual = gpu.power_limit_watts, gpu.power_limit_default_watts
        if limit is not None:
            words.append(f"power limit {limit:.0f} of {_format_number(usual)} W")
        words += gpu.slowdowns or ()
        if gpu.slowdowns or (gpu.temperature_celsius or 0) >= HOTTEST_AT_REST_CELSIUS:
            codes.append("slowed_down")
            remedies.append("let the GPU cool down and look at its cooling and power supply")
        if limit is not None and usual is not None and limit < SMALLEST_POWER_LIMIT * usual:
            codes.append("power_limit")
            remedies.append(f"set the usual power limit (nvidia-smi -i {gpu.index} --power-limit={usual:.0f})")
        results.append(f"GPU {gpu.index}: {', '.join(words)}")
    finding = explain(
        codes[0] if codes else "ok", "{clocks}", clocks="; ".join(results),
        celsius=[gpu.temperature_celsius for gpu in gpus], power_limits=[gpu.power_limit_watts for gpu in gpus],
    )  # fmt: skip
    return PreflightCheck.judge(name, finding, remedy="; ".join(dict.fromkeys(remedies)) or None)


def check_memory(
    gpus: Sequence[GpuMoment], *, world_sizes: Sequence[int], num_parameters: int | None = None
) -> PreflightCheck:
    """Judge whether the ranks of all cells fit on the GPUs, one rank of every cell that reaches so far."""
    name = "free GPU memory"
    per_rank = GIB_PER_CONTEXT + BYTES_PER_PARAMETER * (num_parameters or 0) / 2**30
    results, warned, num_known = [], False, 0
    for gpu in gpus:
        if gpu.memory_total_gib is None or gpu.memory_used_gib is None:
            results.append(f"GPU {gpu.index}: not shown")
            continue
        num_known += 1
        # With more ranks than GPUs they go round.
        num_ranks = sum(-(-(size - gpu.index) // len(gpus)) for size in world_sizes if size > gpu.index)
        free, needed = gpu.memory_total_gib - gpu.memory_used_gib, num_ranks * per_rank * (1 + SPARE_MEMORY)
        warned |= free < needed
        results.append(
            f"GPU {gpu.index}: {free:.1f} GiB free, {format_plural(num_ranks, 'rank')} side by side "
            f"need about {needed:.1f} GiB"
        )
    text = "; ".join(results) + ("" if num_parameters else " without their models")
    if not num_known:
        return PreflightCheck.not_checked(name, "not_shown", "the driver does not show it")
    remedy = "end other programs on the GPU, or measure fewer cells at once"
    finding = explain("too_little_memory", "{gpus}", gpus=text, needed_gib_per_rank=per_rank)
    return PreflightCheck.judge(name, finding, remedy=remedy if warned else None)


def _describe_process(pid: int, memory_gib: float | None) -> str:
    try:
        name = psutil.Process(pid).name()
    except psutil.Error:
        name = "a process outside this container"
    return f"{name} (pid {pid}, {_format_number(memory_gib)} GiB)"


def _describe_link(generation: int | None, width: int | None) -> str:
    words = f"generation {_format_number(generation)} x{_format_number(width)}"
    per_lane = _GB_PER_SECOND_PER_LANE.get(generation or 0)
    return f"{words} ({per_lane * width:.1f} GB/s)" if per_lane and width else words


def _is_below(value: int | None, highest: int | None) -> bool:
    return value is not None and highest is not None and value < highest


def _format_number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
