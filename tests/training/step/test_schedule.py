"""The learning rate of every step."""

import pytest

from training.step.schedule import compute_learning_rate

_HALF = 2**-0.5


def _rates(schedule, num_steps, *, peak=2.0, **told):
    told = {"warmup_steps": 0, "floor": 0.0, **told}
    steps = range(1, num_steps + 1)
    return [compute_learning_rate(step, num_steps, peak=peak, schedule=schedule, **told) for step in steps]


@pytest.mark.parametrize(
    ("schedule", "told", "rates"),
    [
        # It rises to the peak and falls evenly, without a step of zero.
        ("linear", {"warmup_steps": 2}, [1.0, 2.0, 2.0, 1.5, 1.0, 0.5]),
        # Half the peak in the middle of the decay.
        ("cosine", {}, [2.0, 1 + _HALF, 1.0, 1 - _HALF]),
        # It ends at its floor, and the warm-up begins at nothing all the same.
        ("linear", {"warmup_steps": 2, "floor": 0.5}, [1.0, 2.0, 2.0, 1.75, 1.5, 1.25]),
        ("constant", {"warmup_steps": 1}, [2.0, 2.0, 2.0, 2.0]),
        # It stays at the peak until its last steps.
        ("wsd", {"warmup_steps": 1, "decay_steps": 4}, [2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5]),
        ("wsd", {"warmup_steps": 1, "decay_steps": 9}, [2.0, 2.0, 2 * 2 / 3, 2 / 3]),
    ],
)
def test_rates_are_those_of_the_schedule(schedule, told, rates):
    assert _rates(schedule, len(rates), **told) == pytest.approx(rates)


def test_a_schedule_over_the_run_goes_on_from_segment_to_segment(toy, train_here):
    config = toy.tell(epochs=2, schedule="cosine", warmup_steps=8)
    for index, segment in enumerate(config["segments"]):
        segment |= {"schedule_begin": 6 * index, "schedule_total": 12}
    rates = [event["learning_rate"] for event in train_here(config) if event["event"] == "step"]
    assert rates == _rates("cosine", 12, peak=2e-3, warmup_steps=8)
