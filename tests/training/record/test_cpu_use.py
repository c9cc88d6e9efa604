"""What others used of the CPUs around a step is told once a second has passed: a tick of the kernel is a hundredth."""

import pytest

from training.record import cpu_use
from training.record.cpu_use import RecentCpuUse, compute_others_share


def test_a_share_is_of_a_second_or_two_and_unknown_before(monkeypatch):
    now, busy = [0.0], [0.0]
    monkeypatch.setattr(cpu_use.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(cpu_use.time, "process_time", lambda: 0.5 * now[0])
    monkeypatch.setattr(cpu_use.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(cpu_use, "_read_busy_seconds", lambda _: busy[0])
    recent, shares = RecentCpuUse(), []
    for step in range(80):
        recent.mark()
        now[0] += 0.05
        # From the second second on others use one of both CPUs.
        busy[0] += 0.05 * (1.5 if step >= 40 else 0.5)
        shares.append(compute_others_share([RecentCpuUse.read(recent.measure())]))
    assert shares[:18] == [None] * 18
    assert shares[39] == pytest.approx(0.0)
    assert shares[-1] == pytest.approx(0.5)
    assert None not in shares[20:]
