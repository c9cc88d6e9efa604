"""When a loss that is finite is stopped all the same."""

import pytest

from tests.tiny import make_slice
from training.process.failure import DivergedError
from training.record.window import DivergenceRule


def _stops_at(losses, num_samples=8):
    rule = DivergenceRule()
    for step, loss in enumerate(losses, start=1):
        try:
            rule.take(step, loss, num_targets=0 if loss == 0 else 7, num_samples=num_samples)
        except DivergedError:
            return step
    return None


def test_a_loss_that_has_left_where_it_began_is_stopped_after_five_smoothed_steps():
    # From 4: above max(8, 5). 4, then 100: smoothed 23.2 at step 2 already, so the fifth above is step 6.
    assert _stops_at([4.0, *[100.0] * 20]) == 6
    # 4, then 9: smoothed 9 - 5 x 0.8^n is above 8 from n = 8 on: steps 9 to 13.
    assert _stops_at([4.0, *[9.0] * 20]) == 13
    # Of a single row no more than 4 + 5 nats is believed: above 18, the fifth of 23.2 and more.
    assert _stops_at([4.0, *[100.0] * 20], num_samples=1) == 6


@pytest.mark.parametrize(
    ("losses", "num_samples"),
    [
        ([4.0, *[7.9] * 100], 8),  # less than twice as much
        ([0.01, *[0.9] * 100], 8),  # 90 times as much, and less than a nat more
        ([4.0, *[30.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0] * 2], 8),
        ([0.0, *[4.0] * 20], 8),  # the first step had no target
        ([4.0, *[0.0, 4.0, 4.0] * 20], 8),
        ([0.3, *[3.0] * 100], 1),  # an easy row came first
        ([1.2, *[3.0] * 100], 4),
    ],
)
def test_losses_that_only_vary_are_left_alone(losses, num_samples):
    assert _stops_at(losses, num_samples) is None


def test_a_learning_rate_that_is_far_too_high_ends_with_exit_code_5(toy, train_here):
    config = toy.tell(slices=[make_slice(toy.folder / "slice", num_rows=160)], learning_rate=10.0, warmup_steps=0)
    with pytest.raises(DivergedError, match=r"diverged at step \d+") as caught:
        train_here(config)
    assert caught.value.exit_code == 5
    assert not list((toy.folder / "work" / "segments").glob("*"))
