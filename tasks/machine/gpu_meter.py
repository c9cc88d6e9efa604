"""What the GPUs do while something runs: utilisation, power, energy and memory, read through NVML.

One meter per node, in a process that computes nothing: it reads all GPUs, whoever uses them.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.machine.gpu_facts import ask_nvml, open_gpus, read_memory_gib, read_slowdowns

_MULTIPROCESSORS = 1
"""NVML_CLOCK_SM."""
SAMPLE_SECONDS = 0.1
"""Time between two readings: drivers renew power every 20 to 100 ms and utilisation every 170 to 1,000 ms."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one GPU says at one moment; None for what it does not tell."""

    at: float
    """Clock reading (time.perf_counter), seconds."""
    utilisation: float | None
    """Share of the driver's last sampling period in which a kernel ran, 0..1."""
    power_watts: float | None
    energy_joules: float | None
    """Counter since the driver was loaded."""
    memory_gib: float | None
    """In use by all processes, and by the driver where it does not tell the two apart."""
    clock_mhz: float | None = None
    """Of the multiprocessors."""
    is_slowed: bool | None = None
    """Whether heat, a brake on power or other hardware holds the clocks down; a limit of power is no such reason."""
    num_processes: int | None = None
    """Processes that compute on it, whosever."""


@dataclass(frozen=True, kw_only=True)
class GpuFigures:
    """What one GPU did over a span."""

    index: int
    """Position among the GPUs that ranks may use."""
    name: str
    utilisation: float | None
    """Mean of the readings, 0..1: in what share of the time any kernel ran, not how well it used the GPU."""
    power_watts: float | None
    """Energy / seconds where the energy is known."""
    energy_joules: float | None
    energy_from: str | None
    """`counter`, or `integrated power` where the GPU has no counter."""
    peak_memory_gib: float | None
    """Highest of the readings, all processes and cached blocks together."""
    num_readings: int
    clock_mhz: float | None = None
    """Mean of the readings."""
    slowed_share: float | None = None
    """Share of the readings in which heat or hardware held the clocks down."""
    num_processes: int | None = None
    """Most of the readings."""


@dataclass(frozen=True, kw_only=True)
class MeterFigures:
    """What all GPUs did over a span."""

    seconds: float
    gpus: tuple[GpuFigures, ...]
    problem: str | None
    """Why there are no figures, or not all; None if there are."""

    @property
    def energy_joules(self) -> float | None:
        """The energy of all GPUs; None unless every one is known."""
        energies = [gpu.energy_joules for gpu in self.gpus]
        known = [energy for energy in energies if energy is not None]
        return sum(known) if known and len(known) == len(energies) else None


class Gpu(Protocol):
    """A GPU that can be read."""

    name: str

    def read(self) -> Reading:
        """Return what it says now."""


class GpuMeter:
    """Readings of some GPUs, taken by a thread of its own for as long as it is open."""

    def __init__(self, gpus: Sequence[Gpu], *, problem: str | None = None, sample_seconds: float = SAMPLE_SECONDS):
        self._gpus = gpus
        self._problem = problem
        self._sample_seconds = sample_seconds
        self._readings: list[list[Reading]] = [[] for _ in gpus]
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_reading, name="gpu-meter", daemon=True)

    def open(self) -> None:
        """Begin to read; without a GPU nothing is started."""
        if self._gpus:
            self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._is_closed.set()
        if self._gpus:
            self._thread.join()

    @contextlib.contextmanager
    def span(self) -> Iterator["Span"]:
        """Yield a span that has its figures once the block has ended; one at a time.

        Both ends are readings of their own, so that the counter's energy is that of the block alone.
        """
        with self._lock:
            for readings in self._readings:
                readings.clear()
        span = Span(started_at=time.perf_counter())
        self._read_all()
        try:
            yield span
        finally:
            self._read_all()
            seconds = time.perf_counter() - span.started_at
            with self._lock:
                figures = tuple(
                    compute_gpu_figures(readings, index=index, name=gpu.name)
                    for index, (gpu, readings) in enumerate(zip(self._gpus, self._readings, strict=True))
                )
            span.figures = MeterFigures(seconds=seconds, gpus=figures, problem=self._problem)

    def _keep_reading(self) -> None:
        while not self._is_closed.wait(self._sample_seconds):
            self._read_all()

    def _read_all(self) -> None:
        with self._lock:
            for gpu, readings in zip(self._gpus, self._readings, strict=True):
                readings.append(gpu.read())


@dataclass(kw_only=True)
class Span:
    """A block of time that is being metered."""

    started_at: float
    figures: MeterFigures | None = None
    """None until the block has ended."""


@contextlib.contextmanager
def open_gpu_meter() -> Iterator[GpuMeter]:
    """Open a meter over the GPUs that ranks may use.

    Without a driver, or with one that does not answer, its spans have no GPUs and say why.
    """
    import pynvml

    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(open_gpus())
            gpus, problem = [NvmlGpu(handle) for handle in opened.handles], opened.problem
        except pynvml.NVMLError as error:
            gpus, problem = [], f"the NVIDIA driver does not answer: {error}"
        meter = GpuMeter(gpus, problem=problem)
        meter.open()
        stack.callback(meter.close)
        yield meter


class NvmlGpu:
    """A GPU that NVML reads."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.name: str = ask_nvml("DeviceGetName", handle) or "unnamed GPU"

    def read(self) -> Reading:
        """Return what it says now; None for what it does not tell."""
        at = time.perf_counter()
        energy_millijoules = ask_nvml("DeviceGetTotalEnergyConsumption", self._handle)
        power_milliwatts = ask_nvml("DeviceGetPowerUsage", self._handle)
        utilisation = ask_nvml("DeviceGetUtilizationRates", self._handle)
        _, used = read_memory_gib(self._handle)
        clock = ask_nvml("DeviceGetClockInfo", self._handle, _MULTIPROCESSORS)
        slowdowns = read_slowdowns(self._handle)
        processes = ask_nvml("DeviceGetComputeRunningProcesses", self._handle)
        return Reading(
            at=at,
            utilisation=None if utilisation is None else utilisation.gpu / 100,
            power_watts=None if power_milliwatts is None else power_milliwatts / 1000,
            energy_joules=None if energy_millijoules is None else energy_millijoules / 1000,
            memory_gib=used,
            clock_mhz=None if clock is None else float(clock),
            is_slowed=None if slowdowns is None else bool(slowdowns),
            num_processes=None if processes is None else len(processes),
        )


def compute_gpu_figures(readings: Sequence[Reading], *, index: int, name: str) -> GpuFigures:
    """Return what the readings of one GPU come to, the first and the last of them being the ends of the span.

    A counter that runs backwards was reset, so that the power is integrated (trapezoidal rule) instead.
    """

    def known(name: str) -> list[float]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    def mean(name: str) -> float | None:
        return sum(known(name)) / len(known(name)) if known(name) else None

    energy, energy_from = _count_energy(readings), "counter"
    if energy is None:
        energy, energy_from = _integrate_power(readings), "integrated power"
    seconds = readings[-1].at - readings[0].at if readings else 0.0
    return GpuFigures(
        index=index,
        name=name,
        utilisation=mean("utilisation"),
        power_watts=energy / seconds if energy is not None and seconds > 0 else None,
        energy_joules=energy,
        energy_from=None if energy is None else energy_from,
        peak_memory_gib=max(known("memory_gib"), default=None),
        num_readings=len(readings),
        clock_mhz=mean("clock_mhz"),
        slowed_share=mean("is_slowed"),
        num_processes=int(max(known("num_processes"))) if known("num_processes") else None,
    )


def _count_energy(readings: Sequence[Reading]) -> float | None:
    """Return what the counter rose by, joules; None without a counter, or with one that was reset."""
    if len(readings) < 2:
        return None
    first, last = readings[0].energy_joules, readings[-1].energy_joules
    return None if first is None or last is None or last < first else last - first


def _integrate_power(readings: Sequence[Reading]) -> float | None:
    """Return the integral of the power over the readings that have it, joules; None with fewer than two."""
    known = [(reading.at, reading.power_watts) for reading in readings if reading.power_watts is not None]
    if len(known) < 2:
        return None
    return sum((later - at) * (power + after) / 2 for (at, power), (later, after) in itertools.pairwise(known))
