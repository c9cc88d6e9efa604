"""What NVML says of the GPUs and of the links between them, and what data sheets say of their arithmetic.

What is not known is None, never a guess.
"""

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tasks.process.failure import ResourceError


@dataclass(frozen=True, kw_only=True)
class OpenGpus:
    """NVML while it is open."""

    handles: tuple[Any, ...]
    """One NVML handle per GPU or slice of one, in the order in which ranks take them."""
    every: tuple[Any, ...] = ()
    """Those of all GPUs of the machine that answer, in the driver's order, whoever may use them."""
    driver: str | None
    """The driver's version; None without a driver."""
    problem: str | None
    """Why there is no GPU, in plain words; None if there is one."""
    is_broken: bool = False
    """Whether there is a driver that does not answer, so that GPUs may be there all the same."""
    is_slice: bool = False
    """Whether the one handle is of a MIG slice, beside which CUDA shows a process nothing."""


_LEVELS = {
    0: "on one board",
    10: "through one PCIe switch",
    20: "through several PCIe switches",
    30: "through one PCIe host bridge",
    40: "through one CPU socket",
    50: "from one CPU socket to another",
}
"""NVML_TOPOLOGY_*: how far two GPUs are apart on PCIe."""
_PEER_STATES = {
    0: "peer to peer",
    1: "no peer to peer: the chipset does not support it",
    2: "no peer to peer: the GPUs do not support it",
    3: "no peer to peer: the PCIe topology does not support it",
    4: "no peer to peer: switched off in the driver's registry",
    5: "no peer to peer: not supported",
}
"""NVML_P2P_STATUS_*."""
_SLOWDOWNS = {
    0x8: "slowed down by the hardware (heat or power supply)",
    0x40: "too hot (hardware)",
    0x20: "too hot (driver)",
    0x80: "power brake of the power supply",
}
"""Of nvmlClocksEventReasons those that cost speed."""
_QUESTIONS = {
    "pcie_generation": "CurrPcieLinkGeneration", "pcie_generation_max": "MaxPcieLinkGeneration",
    "pcie_width": "CurrPcieLinkWidth", "pcie_width_max": "MaxPcieLinkWidth", "performance_state": "PerformanceState",
}  # fmt: skip
"""Field of a GpuMoment -> what NVML calls it."""
_MIG_ON = 1
ON_CPU = "set CUDA_VISIBLE_DEVICES to nothing to train on the CPU"
_READING_PEERS = 0
"""NVML_P2P_CAPS_INDEX_READ, which is a tuple in nvidia-ml-py (13.x: `= 0,`), so that no call takes it."""
SWITCHED_OFF = _PEER_STATES[4]
"""The one state that somebody has chosen."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    memory_gib: float | None


@dataclass(frozen=True, kw_only=True)
class GpuMoment:
    """One GPU at one moment."""

    index: int
    """Position among the GPUs that ranks may use."""
    name: str
    utilisation: float | None = None
    """Share of the last sampling period (up to a second) in which a kernel ran, 0..1."""
    processes: tuple[GpuProcess, ...] | None = None
    """Processes that compute on it; in a container the driver may show none."""
    memory_total_gib: float | None = None
    memory_used_gib: float | None = None
    """What processes hold, and what the driver keeps for itself where it does not tell the two apart."""
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    """The highest that the GPU and its slot can do together."""
    pcie_width: int | None = None
    """Lanes."""
    pcie_width_max: int | None = None
    performance_state: int | None = None
    """0 is full speed; a GPU at rest is at 8 or more, with its link slowed down as well."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    slowdowns: tuple[str, ...] | None = None
    """Reasons why the clock is held down now, in plain words, other than rest."""
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    temperature_celsius: int | None = None
    nvlinks_active: int | None = None
    """NVLinks that are up; None where the GPU has none."""
    nvlinks: int | None = None
    """NVLinks that the GPU has."""


@dataclass(frozen=True, kw_only=True)
class LinkFacts:
    """How two GPUs reach each other."""

    first: int
    second: int
    has_nvlink: bool | None
    peer: str | None
    """Whether they can read each other's memory, in plain words."""
    path: str | None
    """The way over PCIe, in plain words."""

    @property
    def kind(self) -> str:
        """How they reach each other, in plain words."""
        if self.has_nvlink:
            return "NVLink"
        return ", ".join(["PCIe " + self.path if self.path else "PCIe", self.peer or "peer to peer unknown"])


def read_gpu(handle: Any, index: int) -> GpuMoment:
    """Return what NVML says of the GPU behind an NVML handle."""
    import pynvml as nvml

    total, used = read_memory_gib(handle)
    processes = ask_nvml("DeviceGetComputeRunningProcesses", handle)
    if processes is not None:
        processes = tuple(GpuProcess(pid=item.pid, memory_gib=divide(item.usedGpuMemory, 2**30)) for item in processes)
    links = [ask_nvml("DeviceGetNvLinkState", handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    known = [state for state in links if state is not None]
    utilisation = ask_nvml("DeviceGetUtilizationRates", handle)
    return GpuMoment(
        index=index,
        name=ask_nvml("DeviceGetName", handle) or "unnamed GPU",
        utilisation=utilisation and utilisation.gpu / 100,
        processes=processes,
        memory_total_gib=total,
        memory_used_gib=used,
        **{field: ask_nvml(f"DeviceGet{question}", handle) for field, question in _QUESTIONS.items()},
        sm_clock_mhz=ask_nvml("DeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask_nvml("DeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        slowdowns=read_slowdowns(handle),
        power_limit_watts=divide(ask_nvml("DeviceGetEnforcedPowerLimit", handle), 1000),
        power_limit_default_watts=divide(ask_nvml("DeviceGetPowerManagementDefaultLimit", handle), 1000),
        temperature_celsius=ask_nvml("DeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        nvlinks_active=sum(known) if known else None,
        nvlinks=len(known) or None,
    )


def divide(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def read_link(first: Any, second: Any, *, indices: tuple[int, int]) -> LinkFacts:
    """Return what NVML says of the way between two GPUs."""
    import pynvml as nvml

    nvlink = ask_nvml("DeviceGetP2PStatus", first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    peer = ask_nvml("DeviceGetP2PStatus", first, second, _READING_PEERS)
    level = ask_nvml("DeviceGetTopologyCommonAncestor", first, second)
    return LinkFacts(
        first=indices[0],
        second=indices[1],
        has_nvlink=None if nvlink is None else nvlink == nvml.NVML_P2P_STATUS_OK,
        peer=_PEER_STATES.get(peer),
        path=_LEVELS.get(level),
    )


def read_slowdowns(handle: Any) -> tuple[str, ...] | None:
    """Return why the clock is held down now, in plain words; a limit of power is no such reason."""
    reasons = ask_nvml("DeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # the name that drivers before 535 know
        reasons = ask_nvml("DeviceGetCurrentClocksThrottleReasons", handle)
    return None if reasons is None else tuple(words for bit, words in _SLOWDOWNS.items() if reasons & bit)


def read_memory_gib(handle: Any) -> tuple[float | None, float | None]:
    """Return total and used memory, GiB; without the driver's own share where it tells."""
    import pynvml

    memory = ask_nvml("DeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    memory = memory or ask_nvml("DeviceGetMemoryInfo", handle)
    return (None, None) if memory is None else (memory.total / 2**30, memory.used / 2**30)


def read_compute_capability(handle: Any) -> str | None:
    """Return what NVIDIA calls the generation of a GPU, such as 9.0; a slice has that of its GPU."""
    whole = ask_nvml("DeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
    version = ask_nvml("DeviceGetCudaComputeCapability", whole)
    return None if version is None else ".".join(map(str, version))


def ask_nvml(question: str, *arguments: Any) -> Any:
    """Return what NVML's function of that name, without `nvml` before it, answers.

    None where this GPU, driver or container gives no answer.
    """
    import pynvml

    try:
        return getattr(pynvml, f"nvml{question}")(*arguments)
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def open_gpus() -> Iterator[OpenGpus]:
    """Open NVML for a while; a machine whose driver does not answer has no GPUs and says so.

    Raises ResourceError if a GPU that CUDA_VISIBLE_DEVICES leaves does not answer, then or while NVML is open.
    """
    import pynvml

    absence = None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absence = _explain_absence(error)
    if absence is not None:
        yield absence
        return
    try:
        there = _list_handles()
        slices = [None if isinstance(handle, ResourceError) else _list_slices(handle) for handle in there]
        choice = os.environ.get("CUDA_VISIBLE_DEVICES")
        problem = f"CUDA_VISIBLE_DEVICES={choice} leaves none of {len(slices)} GPUs"
        if [] in slices:
            problem = "MIG is on and no slice is there; make one (nvidia-smi mig -cgi ... -C), or switch MIG off"
        chosen = select_visible(
            [_read_uuid(handle) for handle in there],
            choice,
            slices=[None if own is None else [_read_uuid(part) for part in own] for own in slices],
        )
        handles = [there[gpu] if part is None else (slices[gpu] or [])[part] for gpu, part in chosen]
        for handle in handles:
            if isinstance(handle, ResourceError):
                raise handle
        yield OpenGpus(
            handles=tuple(handles),
            every=tuple(handle for handle in there if not isinstance(handle, ResourceError)),
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            problem=None if chosen else problem,
            is_slice=bool(chosen) and chosen[0][1] is not None,
        )
    except pynvml.NVMLError as error:
        raise ResourceError(f"a GPU does not answer: {error}; restart the machine, or {ON_CPU}") from None
    finally:
        pynvml.nvmlShutdown()


def _explain_absence(error: Exception) -> OpenGpus:
    """Return why NVML does not open: there is no driver, or it is broken."""
    import pynvml

    problem = f"no NVIDIA driver answers: {str(error).rstrip('.')}"
    is_absent = isinstance(error, pynvml.NVMLError_LibraryNotFound | pynvml.NVMLError_DriverNotLoaded)
    if is_absent and not any(Path("/dev").glob("nvidia[0-9]*")):
        return OpenGpus(handles=(), driver=None, problem=problem)
    problem += (
        "; see that `nvidia-smi` works (a driver that was updated wants a restart, a container "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
    )
    return OpenGpus(handles=(), driver=None, problem=problem, is_broken=True)


def _list_handles() -> list[Any]:
    """Return of each GPU that this process may use, in the driver's order, its handle, or why it has none.

    Those that it may not use (a container's, a job's of a cluster) are none to CUDA either.
    """
    import pynvml

    handles = list[Any]()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError_NoPermission:
            continue
        except pynvml.NVMLError as error:
            remedy = f"restart the machine, leave it out with CUDA_VISIBLE_DEVICES, or {ON_CPU}"
            handles.append(ResourceError(f"GPU {index} does not answer: {error}; {remedy}"))
    return handles


def _read_uuid(handle: Any) -> str:
    return "" if isinstance(handle, ResourceError) else ask_nvml("DeviceGetUUID", handle) or ""


def _list_slices(handle: Any) -> list[Any] | None:
    """Return the handles of a GPU's MIG slices; None where it is whole."""
    modes = ask_nvml("DeviceGetMigMode", handle)
    if modes is None or modes[0] != _MIG_ON:
        return None
    places = range(ask_nvml("DeviceGetMaxMigDeviceCount", handle) or 0)
    handles = [ask_nvml("DeviceGetMigDeviceHandleByIndex", handle, place) for place in places]
    return [part for part in handles if part is not None]


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
    for entry in map(str, range(len(uuids))) if choice is None else choice.split(","):
        place = _find_entry(entry.strip(), uuids, slices)
        if place is None:
            break
        wanted.append(place)
    shown = [(gpu, 0 if part is None and slices[gpu] else part) for gpu, part in wanted if slices[gpu] != []]
    return next(([place] for place in shown if place[1] is not None), shown)


def _find_entry(
    entry: str, uuids: Sequence[str], slices: Sequence[Sequence[str] | None]
) -> tuple[int, int | None] | None:
    if entry.isdigit() and int(entry) < len(uuids):
        return int(entry), None
    named: list[tuple[int, int | None, str]] = [(gpu, None, uuid) for gpu, uuid in enumerate(uuids)]
    named += [(gpu, part, uuid) for gpu, own in enumerate(slices) for part, uuid in enumerate(own or ())]
    is_uuid = entry.startswith(("GPU-", "MIG-"))
    return next(((gpu, part) for gpu, part, uuid in named if is_uuid and uuid.startswith(entry)), None)


class Peak(NamedTuple):
    """Dense peak of a GPU, TFLOP/s, without structured sparsity; None where it has no such hardware."""

    pattern: str
    """Regular expression for the whole name that NVML gives, without its vendor and its memory size."""
    source: str
    fp32: float | None = None
    """Ordinary cores: what torch uses for fp32 unless TF32 is switched on."""
    tf32: float | None = None
    bf16: float | None = None
    """Tensor cores, sums in fp32, as torch uses them; so with fp16."""
    fp16: float | None = None


_PEAKS = [Peak(**peak) for peak in tomllib.loads(Path(__file__).with_name("gpu_peaks.toml").read_text())["peaks"]]
_VENDOR = re.compile(r"^(NVIDIA|Tesla|GeForce)\s+", re.IGNORECASE)
_MEMORY_SIZE = re.compile(r"[ -]\d+ ?GB$", re.IGNORECASE)


def find_peak(gpu_name: str) -> Peak | None:
    """Return the data sheet's figures for a GPU by the name that NVML gives; None if the name is not exactly known.

    A part of a GPU (MIG), a laptop's or a cloud's variant is another GPU, whose figures are not guessed.
    """
    name = gpu_name.strip()
    while (shorter := _VENDOR.sub("", name)) != name:
        name = shorter
    names = {name, _MEMORY_SIZE.sub("", name)}
    results = [peak for peak in _PEAKS if any(re.fullmatch(peak.pattern, item, re.IGNORECASE) for item in names)]
    return results[0] if len(results) == 1 else None


def find_peak_tflops(gpu_name: str, precision: str) -> float | None:
    """Return the dense peak (TFLOP/s) of a GPU at `fp32`, `tf32`, `bf16` or `fp16`; None where it is not known."""
    tflops: float | None = getattr(find_peak(gpu_name), precision, None)
    return tflops
