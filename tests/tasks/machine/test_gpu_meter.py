"""What the readings of a GPU come to, by hand."""

import itertools
import threading
import time

import pytest

from tasks.machine.gpu_meter import GpuMeter, Reading, compute_gpu_figures
from training.process.heartbeat import call_every


def reading(at, *, energy=None, power=100.0):
    return Reading(at=at, utilisation=at / 10, power_watts=power, energy_joules=energy, memory_gib=1.0 + at)


def figures(readings):
    return compute_gpu_figures(readings)


@pytest.mark.parametrize(
    ("readings", "joules", "watts"),
    [
        ([(0.0, 5000.0, 100.0), (1.0, 5130.0, 100.0), (4.0, 5240.0, 100.0)], 240.0, 60.0),
        ([(0.0, None, 100.0), (1.0, None, 200.0), (3.0, None, 50.0)], 400.0, 400 / 3),
        # A counter that was reset is not believed.
        ([(0.0, 9000.0, 100.0), (2.0, 10.0, 100.0)], 200.0, 100.0),
    ],
)
def test_energy_is_what_the_counter_rose_by_or_the_power_integrated(readings, joules, watts):
    found = figures([reading(at, energy=energy, power=power) for at, energy, power in readings])
    assert (found.energy_joules, found.power_watts) == (pytest.approx(joules), pytest.approx(watts))
    assert found.utilisation == pytest.approx(sum(at for at, *_ in readings) / 10 / len(readings))
    assert found.peak_memory_gib == 1.0 + readings[-1][0]


class Recorded:
    """A GPU that draws 50 W by its counter; says when it has been read a few times."""

    def __init__(self):
        self._count = itertools.count(1)
        self.is_read_often = threading.Event()

    def __call__(self):
        number, at = next(self._count), time.perf_counter()
        # A stall of this process lets the other thread read a few times more in any span.
        if number >= 30:
            self.is_read_often.set()
        return Reading(at=at, utilisation=0.5, power_watts=None, energy_joules=50 * at, memory_gib=float(number))


def test_a_span_has_the_readings_of_its_own_time_from_one_thread():
    gpus = [Recorded(), Recorded()]
    meter = GpuMeter(gpus)
    before = threading.active_count()
    with call_every(0.01, meter.read, name="gpu-meter"):
        assert threading.active_count() == before + 1
        with meter.span() as first:
            assert all(gpu.is_read_often.wait(60) for gpu in gpus)
        with meter.span() as second:
            pass
    assert threading.active_count() == before
    assert [gpu.power_watts for gpu in first.gpus] == pytest.approx([50.0, 50.0])
    assert first.seconds > second.seconds  # begun anew
    assert (first.gpus[0].peak_memory_gib or 0) >= 30
    assert (second.gpus[0].peak_memory_gib or 0) > (first.gpus[0].peak_memory_gib or 0)
    assert (second.gpus[0].energy_joules or 0) < (first.gpus[0].energy_joules or 0)


def test_clocks_and_what_holds_them_down_are_told_and_processes_are_counted():
    readings = [
        Reading(
            at=float(at), utilisation=1.0, power_watts=300.0, energy_joules=None, memory_gib=1.0, clock_mhz=clock,
            is_slowed=slowed, num_processes=processes,
        )
        for at, (clock, slowed, processes) in enumerate([(1980.0, False, 3), (1410.0, True, 4), (1410.0, True, 3)])
    ]  # fmt: skip
    found = figures(readings)
    assert found.clock_mhz == pytest.approx(1600.0)
    assert found.slowed_share == pytest.approx(2 / 3)
    assert found.num_processes == 4
