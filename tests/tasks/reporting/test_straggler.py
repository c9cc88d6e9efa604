"""Which rank is slower than the others, by figures made up for it and by real ranks."""

import numpy as np
import pytest

from tasks.reporting.straggler import find_slowest_rank
from tests.tasks.reporting.blocks import make_steps


def _steps(own, positions=None):
    """Return steps of a second with these own seconds, (steps, ranks)."""
    own = np.asarray(own, dtype=float)
    positions = np.full(own.shape, 100) if positions is None else positions
    return make_steps(np.ones(len(own)), rank_own_seconds=own, rank_own_positions=positions)


def test_a_rank_that_takes_twice_as_long_is_named_with_what_the_others_wait():
    slowest = find_slowest_rank(_steps([[0.2, 0.4, 0.2]] * 10))
    assert (slowest.rank, slowest.times_as_long, slowest.is_straggler) == (1, 2.0, True)
    assert slowest.waiting_share == pytest.approx(0.2), "0.4 s of each second, of which the others need half"


def test_longer_micro_batches_and_moments_are_no_lag():
    positions = np.array([[100, 300], [400, 100], [100, 900], [200, 100]] * 5)
    # 50 ms and 1 ms per position: a rank with three times the work takes 2.3 times as long.
    own = 0.05 + 0.001 * positions
    slowest = find_slowest_rank(_steps(own, positions))
    assert slowest.times_as_long == pytest.approx(1.0)
    assert not slowest.is_straggler
    own[3, 1] += 30.0
    assert not getattr(find_slowest_rank(_steps(own, positions)), "is_straggler", None)
    own[:, 1] *= 2.5
    slowest = find_slowest_rank(_steps(own, positions))
    assert (slowest.is_straggler, slowest.rank) == (True, 1)
    assert slowest.times_as_long == pytest.approx(2.5, rel=0.05)


def test_clean_ranks_on_a_noisy_machine_are_never_called_stragglers():
    random = np.random.default_rng(1)
    for _ in range(150):
        world_size, num_steps = random.integers(2, 9), random.integers(8, 60)
        positions = random.integers(50, 500, (num_steps, world_size))
        own = (0.002 + 1e-4 * positions) * random.lognormal(0, 0.25, (num_steps, world_size))
        # A rank is put aside for a while in a fifth of its steps; one core is 1.2 times as slow.
        own += (random.random((num_steps, world_size)) < 0.2) * random.exponential(0.1, (num_steps, world_size))
        own[:, 0] *= 1.2
        slowest = find_slowest_rank(_steps(own, positions))
        assert not slowest.is_straggler, slowest


def test_one_rank_ranks_that_do_not_say_and_too_few_steps_are_no_evidence():
    assert find_slowest_rank(_steps([[0.2]] * 4)) is None
    assert find_slowest_rank(_steps([[0.0, 0.0]] * 4)) is None
    slowest = find_slowest_rank(_steps([[0.2, 0.6]] * 7))
    assert (slowest.times_as_long, slowest.is_straggler) == (pytest.approx(3.0), False)
