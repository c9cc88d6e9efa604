"""Whether the installed torch can train on this machine's GPUs what params.yaml asks for, found before any download.

What is found here is one line with a remedy; a rank would find it after everything was downloaded, or be slow for it.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence

from tasks.machine.gpu_facts import ON_CPU, ask_nvml, open_gpus
from tasks.machine.torch_facts import TorchFacts, fetch_torch_facts
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.process.failure import ConfigurationError, ResourceError
from tasks.records.facts import GpuFacts
from tasks.records.manifests import MachineFile

_log = logging.getLogger(__name__)

FIRST_WITH_BF16 = (8, 0)
"""Compute capability of Ampere: the first GPUs that compute in bf16, and that have the variable-length kernel."""
_OLDEST_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""By the major version of CUDA, all of whose minor ones run on it. Source: NVIDIA, CUDA Compatibility."""
_BY_ADDRESS = "PCI_BUS_ID"
_CHOICES_OF_NONE = ("", "-1")


def require_usable_gpus(params: Params, machine: MachineFile) -> None:
    """Raise ResourceError or ConfigurationError, in one line, if the cells cannot train on the GPUs as they are asked.

    Nothing is asked where there is no GPU, which is logged. Where there are some of which none can be used, or a driver
    that does not answer, that is a ResourceError too, unless CUDA_VISIBLE_DEVICES says so.
    """
    if not machine.gpus and os.environ.get("CUDA_VISIBLE_DEVICES") in _CHOICES_OF_NONE:
        return
    with open_gpus() as opened:
        names = [str(ask_nvml("DeviceGetName", handle)) for handle in opened.every]
        driver_cuda = ask_nvml("SystemGetCudaDriverVersion") if names else None
    if not machine.gpus:
        if names or opened.is_broken:
            raise ResourceError(f"{opened.problem}; or {ON_CPU}")
        _log.info("no GPU: trains on the CPU")
        return
    used = machine.gpus[: max(cell.ranks_per_node for cell in params.cells.values())]
    if problem := (
        explain_too_few(params, machine, num_there=len(names), is_slice=opened.is_slice)
        or explain_order(names, os.environ)
        or explain_unfit(used, fetch_torch_facts(machine.digest), driver=machine.driver, driver_cuda=driver_cuda)
    ):
        raise ResourceError(problem)
    if problem := explain_slow(params, used):
        raise ConfigurationError(problem)


def explain_too_few(params: Params, machine: MachineFile, *, num_there: int, is_slice: bool) -> str | None:
    """Return which cell has more ranks here than there are GPUs for, with the remedy; None if none has.

    `num_there`: GPUs that the driver has, chosen or not. `is_slice`: whether the one that may be used is a slice of a
    GPU. Slices are no GPUs to several ranks: CUDA shows a process one of them, and NCCL joins ranks on slices from 2.31
    on only, as an experiment. Source: NVIDIA, NCCL user guide, "Using MIG instances".
    """
    ranks = {cell: item.ranks_per_node for cell, item in params.cells.items() if not item.oversubscribe}
    cell = max(ranks, key=lambda name: ranks[name], default=None)
    if cell is None or ranks[cell] <= machine.num_gpus:
        return None
    here = "" if params.cells[cell].num_nodes == 1 else " on every machine"
    may = f"{machine.num_gpus} may be used here"
    remedy = f"give the cell {machine.num_gpus} at most{here}"
    if is_slice:
        may = f"CUDA shows a process one MIG slice and nothing else, here {machine.gpus[0].name}"
        remedy = f"switch MIG off, name whole GPUs in CUDA_VISIBLE_DEVICES, {remedy}"
    elif num_there > machine.num_gpus:
        may += f" of {num_there}"
        remedy = f"name more in CUDA_VISIBLE_DEVICES, {remedy}"
    return (
        f"cells.{cell} has {ranks[cell]} ranks{here}, each of which needs a GPU of its own, and {may}; {remedy}, leave "
        f"it out, say oversubscribe: true in it (ranks then share GPUs, which says nothing about scaling), or {ON_CPU}"
    )


def explain_order(names: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return what is wrong with how GPUs are numbered; None if the driver and CUDA mean the same by a number.

    `names`: of all GPUs, in the driver's order. CUDA puts the fastest first, unless it is told otherwise.
    """
    choice = environment.get("CUDA_VISIBLE_DEVICES")
    has_numbers = choice is None or any(entry.strip().isdigit() for entry in choice.split(","))
    if len(set(names)) < 2 or not has_numbers or environment.get("CUDA_DEVICE_ORDER") == _BY_ADDRESS:
        return None
    kinds = {name: [str(index) for index, item in enumerate(names) if item == name] for name in dict.fromkeys(names)}
    text = ", ".join(f"{name} ({', '.join(places)})" for name, places in kinds.items())
    most = max(kinds.values(), key=len)
    return (
        f"GPUs of {len(kinds)} kinds: {text}, which CUDA numbers otherwise than the driver; set "
        f"CUDA_DEVICE_ORDER={_BY_ADDRESS}, and GPUs of one kind with CUDA_VISIBLE_DEVICES={','.join(most)} or the like"
    )


def explain_unfit(
    gpus: Sequence[GpuFacts], torch: TorchFacts, *, driver: str | None, driver_cuda: int | None
) -> str | None:
    """Return why torch cannot train on these GPUs, with the remedy; None if it can.

    `driver_cuda`: the newest CUDA that the driver runs, as NVML has it: 12040 is 12.4; None where it is not told.
    """
    first = gpus[0].name
    if torch.cuda is None:
        return f"torch {torch.version} is built for CPUs and this machine has a {first}; run `make setup`, or {ON_CPU}"
    wanted = int(torch.cuda.partition(".")[0])
    if driver_cuda is not None and driver_cuda // 1000 < wanted:
        oldest, runs = _OLDEST_DRIVERS.get(wanted), f"{driver_cuda // 1000}.{driver_cuda % 1000 // 10}"
        other = "type `make setup TORCH=cuda12`, " if driver_cuda // 1000 == 12 else ""
        return (
            f"the NVIDIA driver {driver} runs CUDA {runs} at most, and torch {torch.version} is built for CUDA "
            f"{torch.cuda}; {other}update the driver{f' to {oldest} or later' if oldest else ''}, or {ON_CPU}"
        )
    for gpu in gpus:
        capability = parse_capability(gpu)
        if capability is not None and torch.arch_list and not has_code_for(capability, torch.arch_list):
            return (
                f"torch {torch.version} has no code for {gpu.name} (compute capability {gpu.compute_capability}; "
                f"it has {', '.join(torch.arch_list)}); leave the GPU out with CUDA_VISIBLE_DEVICES, or {ON_CPU}"
            )
    if torch.problem is not None:
        return f"torch {torch.version} cannot use {first}: {torch.problem}; see that `nvidia-smi` works, or {ON_CPU}"
    if torch.num_gpus < len(gpus):
        return (
            f"the driver names {len(gpus)} GPUs that the cells are to use, torch {torch.version} finds "
            f"{torch.num_gpus}; see that `nvidia-smi` shows them all and no other process has one to itself"
        )
    return None


def explain_slow(params: Params, gpus: Sequence[GpuFacts]) -> str | None:
    """Return what the cells ask of GPUs that these do slowly or not at all, with the remedy; None if there is none."""
    train = params.train
    old = next((gpu for gpu in gpus if (parse_capability(gpu) or FIRST_WITH_BF16) < FIRST_WITH_BF16), None)
    if old is not None and train.precision == "bf16" and not train.emulated_bf16:
        return (
            f"train.precision: bf16 on {old.name} (compute capability {old.compute_capability}), which emulates "
            "it and is slow; use fp16, or train.emulated_bf16: true"
        )
    unrolls = train.precision == "fp32" or old is not None
    if read_unit(params.workload) == "token" and train.compile and train.packing and unrolls:
        why = "in fp32" if train.precision == "fp32" else f"on {old.name}" if old else ""
        return (
            f"train.compile: true with train.packing: {str(train.packing).lower()}, but {why} packed attention runs "
            "document by document, which would be compiled anew for every number of them; use one of the two"
        )
    return None


def parse_capability(gpu: GpuFacts) -> tuple[int, int] | None:
    """Return a GPU's compute capability, (9, 0); None where the driver does not tell."""
    if gpu.compute_capability is None:
        return None
    major, minor = map(int, gpu.compute_capability.split("."))
    return major, minor


def has_code_for(capability: tuple[int, int], arch_list: Sequence[str]) -> bool:
    """Return whether code for these architectures runs on a GPU of this compute capability.

    Machine code runs on its own generation, from its own minor version on; with an `a` on that one GPU alone, with an
    `f` on its family. What a driver has yet to translate (compute_...) runs on its own and all later ones. Source:
    NVIDIA, CUDA C++ Programming Guide, "Application Compatibility".
    """
    for name in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        kind, major, minor, suffix = match[1], int(match[2]), int(match[3]), match[4]
        if suffix == "a":
            runs = capability == (major, minor)
        elif kind == "compute" and not suffix:
            runs = capability >= (major, minor)
        else:
            runs = capability[0] == major and capability[1] >= minor
        if runs:
            return True
    return False
