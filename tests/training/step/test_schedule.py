"""The learning rate of every step."""

from dataclasses import replace

import pytest

from training.step.schedule import compute_learning_rate, compute_rate_in_segment

_HALF = 2**-0.5


@pytest.mark.parametrize(
    ("schedule", "told", "rates"),
    [
        # Half the peak in the middle of the decay.
        ("cosine", {}, [2.0, 1 + _HALF, 1.0, 1 - _HALF]),
        # It rises to the peak and falls evenly to its floor; the warm-up begins at nothing all the same.
        ("linear", {"warmup_steps": 2, "floor": 0.5}, [1.0, 2.0, 2.0, 1.75, 1.5, 1.25]),
        ("constant", {"warmup_steps": 1}, [2.0, 2.0, 2.0, 2.0]),
        # It stays at the peak until its last steps.
        ("wsd", {"warmup_steps": 1, "decay_steps": 4}, [2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5]),
        ("wsd", {"warmup_steps": 1, "decay_steps": 9}, [2.0, 2.0, 2 * 2 / 3, 2 / 3]),
    ],
)
def test_rates_are_those_of_the_schedule(schedule, told, rates):
    told = {"warmup_steps": 0, "floor": 0.0, "peak": 2.0, "schedule": schedule, **told}
    steps = range(1, len(rates) + 1)
    assert [compute_learning_rate(step, len(rates), **told) for step in steps] == pytest.approx(rates)


def test_a_schedule_over_the_run_goes_on_from_segment_to_segment(toy):
    config = toy.read(epochs=2, schedule="cosine", warmup_steps=8)
    told = {"peak": config.learning_rate, "schedule": "cosine", "warmup_steps": 8, "floor": 0.0}
    parts = [replace(one, schedule_begin=6 * index, schedule_total=12) for index, one in enumerate(config.segments)]
    rates = [compute_rate_in_segment(config, part, step, num_steps=6) for part in parts for step in range(1, 7)]
    assert rates == [compute_learning_rate(step, 12, **told) for step in range(1, 13)]
