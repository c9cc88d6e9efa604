"""What others used of the CPUs around a step is told once a second has passed: a tick of the kernel is a hundredth."""

import pytest

from training.record import cpu_use
from training.record.cpu_use import CpuUse, RecentCpuUse, compute_others_share


def _emulate(monkeypatch, *, own, busy, num_cpus):
    """Return the hand of a clock, by which this process has used `own` of each second, and all of them `busy(now)`."""
    now = [0.0]
    monkeypatch.setattr(cpu_use.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(cpu_use.time, "process_time", lambda: own * now[0])
    monkeypatch.setattr(cpu_use.os, "sched_getaffinity", lambda _: set(range(num_cpus)))
    monkeypatch.setattr(cpu_use, "_read_busy_seconds", lambda _: busy(now[0]))
    return now


def test_a_share_is_of_a_second_or_two_and_unknown_before(monkeypatch):
    # From the second second on others use one of both CPUs.
    now = _emulate(monkeypatch, own=0.5, busy=lambda now: 0.5 * now + max(now - 2.0, 0.0), num_cpus=2)
    recent, shares = RecentCpuUse(), []
    for _ in range(80):
        recent.mark()
        now[0] += 0.05
        shares.append(compute_others_share([RecentCpuUse.read(recent.measure())]))
    assert shares[:18] == [None] * 18
    assert shares[39] == pytest.approx(0.0)
    assert shares[-1] == pytest.approx(0.5)
    assert None not in shares[20:]


@pytest.mark.parametrize(("path", "quota", "num_cpus", "share"), [
    ("/a/b", "200000 100000", 2.0, 0.25), ("/gone", "6300000 100000", 63.0, 31 / 63), ("/a/b", "max 100000", 64, 0.5),
])  # fmt: skip
def test_in_a_container_with_a_part_of_the_cpus_others_are_those_in_it(
    path, quota, num_cpus, share, tmp_path, monkeypatch
):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "own").write_text(f"1:cpu:/\n0::{path}\n")
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(cpu_use, "_GROUPS", tmp_path)
    monkeypatch.setattr(cpu_use, "_OWN_GROUP", tmp_path / "own")
    now = _emulate(monkeypatch, own=1.0, busy=lambda now: 33.0 * now, num_cpus=64)
    stat = tmp_path / "cpu.stat"
    stat.write_text("usage_usec 7000000\nuser_usec 0\n")
    use, now[0] = CpuUse(), 2.0
    # One core and a half for two seconds, of which the rank had one; 31.5 outside of it, where 62 or 1 are to spare.
    stat.write_text("usage_usec 10000000\nuser_usec 0\n")
    assert use.measure()["num_cpus"] == num_cpus
    assert compute_others_share([use.measure()]) == pytest.approx(share)
