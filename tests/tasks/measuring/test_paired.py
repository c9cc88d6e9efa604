"""What several ranks cost each other, from blocks whose seconds are made up."""

from collections.abc import Sequence

import numpy as np
import pytest

from tasks.measuring.arms import Cell, make_spreading_arms, name_data_arm
from tasks.measuring.paired import list_copy_seconds, list_device_seconds, pair_arms
from tasks.measuring.turns import Timed, TimedTurns

ONE = Cell(name="1gpu", strategy="single", world_size=1, global_batch_size=8)
TWO = Cell(name="2gpu", strategy="ddp", world_size=2, global_batch_size=8)
DRIFT = (1.0, 1.5)
"""By how much longer everything takes from turn to turn."""


def make_timed_turns(*, positions: Sequence[int] = (4, 4), tokens: int = 8) -> TimedTurns:
    """Return two turns, in the second of which the machine is slower; `tokens`: of a step of the two ranks."""
    silent, copies, alone, _ = (arm.name for arm in make_spreading_arms(TWO))
    seconds = {
        ONE.name: ([8.0], [8.0], 8),
        name_data_arm(ONE, "host"): ([8.0], [8.0], 8),
        name_data_arm(ONE, "device"): ([7.0], [7.0], 8),
        TWO.name: ([9.0, 9.0], [9.0, 9.0], tokens),
        name_data_arm(TWO, "host"): ([7.5, 7.5], [7.5, 7.5], tokens),
        name_data_arm(TWO, "device"): ([7.0, 7.0], [7.0, 7.0], tokens),
        # Of two steps each rank is the slowest once.
        silent: ([5.0, 7.0], [7.0, 5.0], tokens),
        copies: ([5.5, 5.5], [5.5, 5.5], tokens),
        alone: ([4.0], [4.0], tokens // 2),
    }
    found = TimedTurns()
    for turn, drift in enumerate(DRIFT):
        for name, (first, second, num_tokens) in seconds.items():
            steps = drift * np.array([first, second]).T
            found.add(
                Timed(
                    arm=name, turn=turn, launch=1, step_seconds=steps, seconds=float(steps.max()),
                    num_tokens=num_tokens,
                    positions_by_rank=list(positions)[: len(first)], num_samples=8, data_wait_seconds=0.0,
                )
            )  # fmt: skip
    return found


def test_arms_are_compared_turn_by_turn_so_that_what_drifts_is_in_both() -> None:
    found = pair_arms(make_timed_turns(), baseline=ONE, cell=TWO, is_weak=False)
    # 5.5 s beside the other, 4 s alone: as much slower in both turns, whatever the machine did in between.
    assert found.contention == pytest.approx((5.5 / 4,) * 2)
    # The slowest takes 7 s in each step, the first rank 6 s in the mean.
    assert found.straggler_seconds == pytest.approx([drift * 1.0 for drift in DRIFT])
    assert found.wrapper_seconds == pytest.approx([drift * 0.5 for drift in DRIFT])
    # Half of the baseline's 7 s would be 3.5.
    assert found.beyond_share_seconds == pytest.approx([drift * 0.5 for drift in DRIFT])
    assert found.share == 0.5


def test_a_first_rank_with_less_than_an_even_share_of_the_work_is_taken_to_have_one() -> None:
    found = pair_arms(make_timed_turns(positions=(3, 5)), baseline=ONE, cell=TWO, is_weak=False)
    # It has 3/4 of an even share.
    assert found.straggler_seconds == pytest.approx([drift * (7.0 - 6.0 / 0.75) for drift in DRIFT])
    assert found.beyond_share_seconds == pytest.approx([drift * (4.0 / 0.75 - 3.5) for drift in DRIFT])
    # The same rows on the same rank.
    assert found.contention == pytest.approx((5.5 / 4,) * 2)
    assert found.wrapper_seconds == pytest.approx([drift * 0.5 for drift in DRIFT])


def test_in_weak_scaling_a_rank_is_held_against_a_baseline_of_as_many_tokens() -> None:
    # 12 tokens on two ranks, so 6 on each, where the baseline has 8.
    found = pair_arms(make_timed_turns(tokens=12), baseline=ONE, cell=TWO, is_weak=True)
    assert found.share == 1.0
    assert found.beyond_share_seconds == pytest.approx([drift * (4.0 - 7.0 * 6 / 8) for drift in DRIFT])


def test_a_copy_is_what_waiting_on_the_host_takes_more_than_on_the_device() -> None:
    assert list_copy_seconds(make_timed_turns(), ONE) == pytest.approx(DRIFT)
    assert list_copy_seconds(make_timed_turns(), TWO) == pytest.approx([drift * 0.5 for drift in DRIFT])
    assert list_device_seconds(make_timed_turns(), ONE) == pytest.approx([drift * 7.0 for drift in DRIFT])
