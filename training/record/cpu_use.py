"""Who used the CPUs meanwhile, by the kernel's own count, and how much memory of the host this rank holds."""

import contextlib
import math
import os
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STAT, _OWN_MEMORY = Path("/proc/stat"), Path("/proc/self/statm")
_OWN_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_LEAST_SECONDS = 1.0
_BUSY = (0, 1, 2, 5, 6, 7)
"""Of the kernel's columns user, nice, system, idle, iowait, irq, softirq, steal: all in which nobody else could run.
Guests are part of user and nice. Source: proc_stat(5)."""


class CpuUse:
    """Counts from its making on; read it outside of what is timed."""

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._limit = _find_limit(len(self._cpus))
        self._busy, self._busy_group = self._read_busy_seconds()
        self._own, self._started = time.process_time(), time.perf_counter()

    @property
    def age(self) -> float:
        """Seconds that have passed."""
        return time.perf_counter() - self._started

    def measure(self) -> dict[str, Any]:
        """Return since then: seconds that the CPUs of this rank were busy, its own of them, and seconds that passed.

        `resident_bytes`: memory that this process holds now. That and `busy_seconds` are None where the kernel does not
        tell. `place` is the same for ranks that share all their CPUs.
        """
        try:
            # The second number of statm counts pages. Source: proc_pid_statm(5).
            resident = int(_OWN_MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            resident = None
        (now, of_group), own = self._read_busy_seconds(), time.process_time()
        passed = time.perf_counter() - self._started
        busy = None if now is None or self._busy is None else now - self._busy
        if busy is not None and self._limit is not None:
            # Of others on the machine only those count who leave it less than it may use.
            group, spare = of_group - self._busy_group, (len(self._cpus) - self._limit[1]) * passed
            busy = group + max(0.0, busy - group - spare)
        return {
            "busy_seconds": busy,
            "own_seconds": own - self._own,
            "seconds": passed,
            "resident_bytes": resident,
            "num_cpus": len(self._cpus) if self._limit is None else self._limit[1],
            "place": f"{socket.gethostname()}: {','.join(map(str, self._cpus))}",
        }

    def _read_busy_seconds(self) -> tuple[float | None, float]:
        """Return for how long the CPUs were busy, and of it for a container that may use a part of them."""
        used = 0.0 if self._limit is None else int((self._limit[0] / "cpu.stat").read_text().split()[1]) / 1e6
        return _read_busy_seconds(self._cpus), used


class RecentCpuUse:
    """The same of the last second or two, whose ticks of a hundredth are fine enough, as plain numbers."""

    def __init__(self) -> None:
        self._marks: list[CpuUse] = []

    def mark(self) -> None:
        """Let what is read begin here, a second later."""
        if not self._marks or self._marks[-1].age >= _LEAST_SECONDS:
            self._marks = [*self._marks[-1:], CpuUse()]

    def measure(self) -> tuple[float, ...]:
        """Return what `read` reads."""
        used = self._marks[0].measure()
        is_known = used["busy_seconds"] is not None and used["seconds"] >= _LEAST_SECONDS
        busy = used["busy_seconds"] if is_known else math.nan
        return busy, used["own_seconds"], used["seconds"], used["num_cpus"], zlib.crc32(used["place"].encode())

    @staticmethod
    def read(row: Sequence[float]) -> dict[str, Any]:
        """Return what a rank measured, from its numbers."""
        busy, own, seconds, num_cpus, place = map(float, row)
        return {
            "busy_seconds": None if math.isnan(busy) else busy, "own_seconds": own, "seconds": seconds,
            "num_cpus": num_cpus, "place": place,
        }  # fmt: skip


def compute_others_share(used: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the ranks' CPUs that others used, the largest of any machine; None if none tells.

    `used`: what each rank measured. Ranks that share their CPUs are one group, so
    that what one takes from the other is not called another's.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for other in used:
        groups.setdefault(other["place"], []).append(other)
    shares = [
        (group[0]["busy_seconds"] - sum(item["own_seconds"] for item in group))
        / (group[0]["num_cpus"] * group[0]["seconds"])
        for group in groups.values()
        if group[0]["busy_seconds"] is not None
    ]
    return min(max(0.0, *shares), 1.0) if shares else None


def _find_limit(num_cpus: int) -> tuple[Path, float] | None:
    """Return the control group that allows this process the fewest cores' worth of time, fewer than its CPUs, and how
    many. Source: cgroup-v2.rst of the kernel.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError):
        own = _GROUPS / _OWN_GROUP.read_text().rpartition("0::/")[2].partition("\n")[0]
        for group in (own, *own.parents[: len(own.relative_to(_GROUPS).parts)]):
            if (group / "cpu.max").is_file() and (group / "cpu.stat").is_file():
                quota, period = (group / "cpu.max").read_text().split()
                if quota.isdigit() and int(quota) < num_cpus * int(period):
                    limits.append((group, int(quota) / int(period)))
    return min(limits, key=lambda limit: limit[1], default=None)


def _read_busy_seconds(cpus: list[int]) -> float | None:
    """Return the seconds for which these CPUs were busy since the machine started; None where it is not told."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    ticks = {name: values for name, *values in map(str.split, lines)}
    wanted = [ticks.get(f"cpu{cpu}", []) for cpu in cpus]
    if any(len(values) <= max(_BUSY) for values in wanted):
        return None
    return sum(int(values[column]) for values in wanted for column in _BUSY) / os.sysconf("SC_CLK_TCK")
