"""What the readings of a GPU come to, by hand."""

import itertools
from dataclasses import replace

import pytest

from tasks.machine.gpu_meter import GpuMeter, Reading, compute_gpu_figures


def reading(at, *, energy=None, power=100.0):
    return Reading(at=at, utilisation=at / 10, power_watts=power, energy_joules=energy, memory_gib=1.0 + at)


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
    found = compute_gpu_figures([reading(at, energy=energy, power=power) for at, energy, power in readings])
    assert (found.energy_joules, found.power_watts) == (pytest.approx(joules), pytest.approx(watts))
    assert found.utilisation == pytest.approx(sum(at for at, *_ in readings) / 10 / len(readings))
    assert found.peak_memory_gib == 1.0 + readings[-1][0]


def test_a_span_has_the_readings_of_its_own_time():
    # Each draws 50 W by its counter, and a reading takes a second.
    gpus = [(reading(at, energy=50.0 * at) for at in itertools.count()).__next__ for _ in range(2)]
    meter = GpuMeter(gpus)
    with meter.span() as first:
        meter.read()
    with meter.span() as second:
        pass
    found = [(gpu.energy_joules, gpu.power_watts, gpu.peak_memory_gib) for gpu in (*first.gpus, *second.gpus)]
    assert found == [(100.0, 50.0, 3.0)] * 2 + [(50.0, 50.0, 5.0)] * 2


def test_clocks_and_what_holds_them_down_are_told_and_processes_are_counted():
    facts = [(1980.0, False, 3), (1410.0, True, 4), (1410.0, True, 3)]
    found = compute_gpu_figures(
        [
            replace(reading(0.0), clock_mhz=clock, is_slowed=is_slowed, num_processes=number)
            for clock, is_slowed, number in facts
        ]
    )
    assert found.clock_mhz == pytest.approx(1600.0)
    assert found.slowed_share == pytest.approx(2 / 3)
    assert found.num_processes == 4
