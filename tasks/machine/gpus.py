"""The NVIDIA GPUs that a process started from here may use, through NVML and without torch."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.machine.gpu_facts import ask_nvml


@dataclass(frozen=True, kw_only=True)
class OpenGpus:
    """NVML while it is open."""

    handles: tuple[Any, ...]
    """One NVML handle per GPU or slice of one, in the order in which ranks take them."""
    every: tuple[Any, ...] = ()
    """Those of all GPUs of the machine, in the driver's order, whoever may use them."""
    driver: str | None
    """The driver's version; None without a driver."""
    problem: str | None
    """Why there is no GPU, in plain words; None if there is one."""
    is_slice: bool = False
    """Whether the one handle is of a MIG slice, beside which CUDA shows a process nothing."""


@contextlib.contextmanager
def open_gpus() -> Iterator[OpenGpus]:
    """Open NVML for a while; a machine without a driver has no GPUs and says so.

    Raises pynvml.NVMLError if there is a driver and one of its GPUs does not answer.
    """
    import pynvml

    absence = None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absence = OpenGpus(handles=(), driver=None, problem=f"no NVIDIA driver answers: {error}")
    if absence:
        yield absence
        return
    try:
        every = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        slices = [_list_slices(handle) for handle in every]
        choice = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = select_visible(
            [pynvml.nvmlDeviceGetUUID(handle) for handle in every],
            choice,
            slices=[None if own is None else [pynvml.nvmlDeviceGetUUID(one) for one in own] for own in slices],
        )
        yield OpenGpus(
            handles=tuple(every[gpu] if part is None else (slices[gpu] or [])[part] for gpu, part in chosen),
            every=tuple(every),
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            problem=None if chosen else _explain_none(choice, slices),
            is_slice=bool(chosen) and chosen[0][1] is not None,
        )
    finally:
        pynvml.nvmlShutdown()


def _list_slices(handle: Any) -> list[Any] | None:
    """Return the handles of a GPU's MIG slices; None where it is whole."""
    import pynvml

    modes = ask_nvml(pynvml.nvmlDeviceGetMigMode, handle)
    if modes is None or modes[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    places = range(ask_nvml(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    found = [ask_nvml(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place) for place in places]
    return [one for one in found if one is not None]


def _explain_none(choice: str | None, slices: Sequence[Sequence[Any] | None]) -> str:
    if any(own is not None and not own for own in slices):
        return "MIG is on and no slice is there; make one (nvidia-smi mig -cgi ... -C), or switch MIG off"
    return f"CUDA_VISIBLE_DEVICES={choice} leaves none of {len(slices)} GPUs"


def select_visible(
    uuids: Sequence[str], choice: str | None, *, slices: Sequence[Sequence[str] | None] | None = None
) -> list[tuple[int, int | None]]:
    """Return what CUDA_VISIBLE_DEVICES leaves, in its order: the GPU, and which of its MIG slices, None if it is whole.

    `slices`: of each GPU the uuids of its slices, None if it is whole. CUDA stops at the first unknown entry. Where a
    slice is among what is left, it shows a process the first slice and nothing else. Source: NVIDIA's MIG user guide,
    "Device names" and "CUDA visible devices".
    """
    slices = slices or [None] * len(uuids)
    wanted: list[tuple[int, int | None]] = []
    for entry in _list_entries(len(uuids), choice):
        found = _find_entry(entry, uuids, slices)
        if found is None:
            break
        wanted.append(found)
    shown = [(gpu, 0 if part is None and slices[gpu] else part) for gpu, part in wanted if slices[gpu] != []]
    first = next((one for one in shown if one[1] is not None), None)
    return shown if first is None else [first]


def _list_entries(num_gpus: int, choice: str | None) -> list[str]:
    return [str(index) for index in range(num_gpus)] if choice is None else [part.strip() for part in choice.split(",")]


def _find_entry(
    entry: str, uuids: Sequence[str], slices: Sequence[Sequence[str] | None]
) -> tuple[int, int | None] | None:
    if entry.isdigit() and int(entry) < len(uuids):
        return int(entry), None
    if entry.startswith("GPU-"):
        return next(((gpu, None) for gpu, uuid in enumerate(uuids) if uuid.startswith(entry)), None)
    if entry.startswith("MIG-"):
        named = [(gpu, part, uuid) for gpu, own in enumerate(slices) for part, uuid in enumerate(own or ())]
        return next(((gpu, part) for gpu, part, uuid in named if uuid.startswith(entry)), None)
    return None
