"""The NVIDIA GPUs that a process started from here may use, through NVML and without torch."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OpenGpus:
    """NVML while it is open."""

    handles: tuple[Any, ...]
    """One NVML handle per GPU, in the order in which ranks take them."""
    driver: str | None
    """The driver's version; None without a driver."""
    problem: str | None
    """Why there is no GPU, in plain words; None if there is one."""


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
        choice = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = select_visible([pynvml.nvmlDeviceGetUUID(handle) for handle in every], choice)
        problem = None if chosen else f"CUDA_VISIBLE_DEVICES={choice} leaves none of {len(every)} GPUs"
        yield OpenGpus(
            handles=tuple(every[index] for index in chosen),
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            problem=problem,
        )
    finally:
        pynvml.nvmlShutdown()


def select_visible(uuids: Sequence[str], choice: str | None) -> list[int]:
    """Return the positions that CUDA_VISIBLE_DEVICES leaves, in its order; CUDA stops at the first unknown entry."""
    if choice is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in choice.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            chosen.append(int(entry))
        elif entry.startswith("GPU-") and (found := [at for at, uuid in enumerate(uuids) if uuid.startswith(entry)]):
            chosen.append(found[0])
        else:
            break
    return chosen
