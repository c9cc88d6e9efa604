"""What the GPUs do while something runs: utilisation, power, energy and memory, read through NVML.

One meter per node, in a process that computes nothing: it reads all GPUs, whoever uses them.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tasks.machine.gpu_facts import ask_nvml, divide, open_gpus, read_memory_gib, read_slowdowns
from tasks.process.failure import ResourceError
from training.process.heartbeat import call_every

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

    utilisation: float | None
    """Mean of the readings, 0..1: in what share of the time any kernel ran, not how well it used the GPU."""
    power_watts: float | None
    """Energy / seconds where the energy is known."""
    energy_joules: float | None
    peak_memory_gib: float | None
    """Highest of the readings, all processes and cached blocks together."""
    clock_mhz: float | None
    """Mean of the readings."""
    slowed_share: float | None
    """Share of the readings in which heat or hardware held the clocks down."""
    num_processes: int | None
    """Most of the readings."""


@dataclass(kw_only=True)
class Span:
    """A block of time that is being metered; what is found stands here once it has ended."""

    seconds: float = 0.0
    gpus: tuple[GpuFigures, ...] = ()
    """In the order in which ranks take them; empty without a driver that answers."""


class GpuMeter:
    """Readings of some GPUs, which `gpus` give: those between the two ends of a span."""

    def __init__(self, gpus: Sequence[Callable[[], Reading]]) -> None:
        self._gpus = gpus
        self._readings: list[list[Reading]] = [[] for _ in gpus]
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def span(self) -> Iterator[Span]:
        """Yield a span that has its figures once the block has ended; one at a time.

        Both ends are readings of their own, so that the counter's energy is that of the block alone.
        """
        with self._lock:
            for readings in self._readings:
                readings.clear()
        span, started_at = Span(), time.perf_counter()
        self.read()
        try:
            yield span
        finally:
            self.read()
            span.seconds = time.perf_counter() - started_at
            with self._lock:
                span.gpus = tuple(map(compute_gpu_figures, self._readings))

    def read(self) -> None:
        """Take a reading of each."""
        with self._lock:
            for gpu, readings in zip(self._gpus, self._readings, strict=True):
                readings.append(gpu())


@contextlib.contextmanager
def open_gpu_meter() -> Iterator[GpuMeter]:
    """Open a meter over the GPUs that ranks may use, which are read in a thread of its own.

    Without a driver, or with one that does not answer, its spans have no GPUs.
    """
    with contextlib.ExitStack() as stack:
        gpus: list[Callable[[], Reading]] = []
        with contextlib.suppress(ResourceError):
            gpus = [partial(_read_gpu, handle) for handle in stack.enter_context(open_gpus()).handles]
        meter = GpuMeter(gpus)
        if gpus:
            stack.enter_context(call_every(SAMPLE_SECONDS, meter.read, name="gpu-meter"))
        yield meter


def _read_gpu(handle: Any) -> Reading:
    """Return what it says now; None for what it does not tell."""
    at, utilisation = time.perf_counter(), ask_nvml("DeviceGetUtilizationRates", handle)
    slowdowns, processes = read_slowdowns(handle), ask_nvml("DeviceGetComputeRunningProcesses", handle)
    return Reading(
        at=at,
        utilisation=utilisation and utilisation.gpu / 100,
        power_watts=divide(ask_nvml("DeviceGetPowerUsage", handle), 1000),
        energy_joules=divide(ask_nvml("DeviceGetTotalEnergyConsumption", handle), 1000),
        memory_gib=read_memory_gib(handle)[1],
        clock_mhz=divide(ask_nvml("DeviceGetClockInfo", handle, _MULTIPROCESSORS), 1),
        is_slowed=None if slowdowns is None else bool(slowdowns),
        num_processes=None if processes is None else len(processes),
    )


def compute_gpu_figures(readings: Sequence[Reading]) -> GpuFigures:
    """Return what the readings of one GPU come to, the first and the last of them being the ends of the span.

    A counter that runs backwards was reset, so that the power is integrated (trapezoidal rule) instead.
    """

    def known(name: str) -> list[Any]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    def mean(name: str) -> float | None:
        return sum(known(name)) / len(known(name)) if known(name) else None

    first, last, energy = readings[0], readings[-1], None
    if len(readings) > 1 and first.energy_joules is not None and last.energy_joules is not None:
        energy = last.energy_joules - first.energy_joules
    if energy is None or energy < 0:
        energy = _integrate_power(readings)
    seconds = last.at - first.at
    return GpuFigures(
        utilisation=mean("utilisation"),
        power_watts=energy / seconds if energy is not None and seconds > 0 else None,
        energy_joules=energy,
        peak_memory_gib=max(known("memory_gib"), default=None),
        clock_mhz=mean("clock_mhz"),
        slowed_share=mean("is_slowed"),
        num_processes=max(known("num_processes"), default=None),
    )


def _integrate_power(readings: Sequence[Reading]) -> float | None:
    """Return the integral of the power over the readings that have it, joules; None with fewer than two."""
    known = [(reading.at, reading.power_watts) for reading in readings if reading.power_watts is not None]
    parts = [(later - at) * (power + after) / 2 for (at, power), (later, after) in itertools.pairwise(known)]
    return sum(parts) if parts else None
