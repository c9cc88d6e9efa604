"""The chain of counterfactuals, on seconds made up so that every part is known."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.measuring import waterfall as waterfall_module
from tasks.measuring.arms import Cell, make_spreading_arms, make_trained_arm, name_data_arm
from tasks.measuring.turns import TimedTurns
from tasks.measuring.waterfall import WAITING, compute_staged_waterfall, compute_waterfall
from tasks.records.estimate import Estimate
from tests.tasks.measuring.noisy_machine import make_block

ONE = Cell(name="1gpu", strategy="single", world_size=1, global_batch_size=8)
FOUR = Cell(name="4gpu", strategy="ddp", world_size=4, global_batch_size=8)
COMPUTE = 0.400
"""Forward and backward of a whole step on one rank; a quarter of it on each of four."""
LOST = {
    "data wait": 0.011,
    "host-to-device copy": 0.007,
    "exposed communication": 0.023,
    "straggler": 0.013,
    "DDP overhead": 0.005,
    "contention": 0.017,
    "optimizer": 0.006,
    "fixed": 0.003,
}
"""Seconds per step that each part is to take away."""


def timed_turns(lost, *, waits=0.0, positions=(2, 2, 2, 2), shorter=1.0):
    """Return eight rounds without noise, of ranks that lose this much.

    `positions`: of each rank, whose seconds are as many times the even share's; `shorter`: the baseline's rows.
    """
    optimizer, fixed = lost["optimizer"] / 0.75, lost["fixed"] / 0.75
    alone = COMPUTE / 4 + optimizer + fixed
    copies = alone + lost["contention"]
    wrapped = copies + lost["DDP overhead"]
    # One rank of four is slower than the others, always and at everything.
    late = lost["straggler"]
    silent = [wrapped * own / np.mean(positions) for own in positions]
    silent[3] += late
    device = max(silent) + lost["exposed communication"]
    host = device + lost["host-to-device copy"]
    whole = COMPUTE + optimizer + fixed
    no_communication, together, lone, update = (arm.name for arm in make_spreading_arms(FOUR))
    seconds = {
        **{name: [whole * shorter] for name in (ONE.name, name_data_arm(ONE, "host"), name_data_arm(ONE, "device"))},
        make_trained_arm(FOUR).name: [host + lost["data wait"]] * 4,
        name_data_arm(FOUR, "host"): [host] * 4,
        name_data_arm(FOUR, "device"): [device] * 4,
        no_communication: silent,
        together: [copies * own / np.mean(positions) for own in positions[:3]] + [copies + late],
        lone: [alone * positions[0] / np.mean(positions)],
        update: [optimizer],
    }
    found = TimedTurns()
    for name, ranks in seconds.items():
        for turn in range(16):
            steps = np.array(ranks)[:, None].repeat(3, axis=1)
            tokens = round(8 * shorter) if name.startswith(ONE.name) else 8 * FOUR.world_size
            waited = waits if name == FOUR.name else 0.0
            block = make_block(
                steps,
                arm=name,
                turn=turn,
                num_tokens=tokens,
                positions_by_rank=list(positions),
                data_wait_seconds=waited,
            )
            found.add(block)
    return found


def fall(lost, *, is_weak=False, timers=None, **timed):
    return compute_waterfall(
        timed_turns(lost, **timed), baseline=ONE, cell=FOUR, has_copy=True, is_weak=is_weak, ddp_timers=timers or {}
    )


def test_every_part_is_found_and_they_add_up():
    found = fall(LOST)
    assert {part.name: part.seconds.value for part in found.parts} == pytest.approx(LOST)
    # Not -9.6e-10 ms in the report.
    assert str(found.unexplained_seconds) == "0.0"
    assert found.ideal_seconds == pytest.approx((COMPUTE + 0.006 / 0.75 + 0.003 / 0.75) / 4)
    assert found.measured_seconds - found.ideal_seconds == pytest.approx(sum(LOST.values()))
    assert found.lost_efficiency == pytest.approx(1 - found.ideal_seconds / found.measured_seconds)


def test_a_part_below_zero_is_no_loss_and_stays_unexplained():
    found = fall({**LOST, "DDP overhead": -0.004})
    assert found.find_lost_seconds("DDP overhead") == 0
    assert found.unexplained_seconds == pytest.approx(-0.004)


def test_noise_in_one_arm_is_levelled_out_between_the_two_parts_that_share_it():
    # The lone copy had bad luck for half of the time: contention seems below 0, and what is fixed too large by as much.
    def noisy(name, seconds):
        return Estimate(value=seconds, low=seconds - 0.010, high=seconds + 0.010)

    found = waterfall_module._compute_losses(
        [noisy("straggler", 0.009), noisy("contention", -0.006), noisy("fixed", 0.008)]
    )
    assert [one.value for one in found] == pytest.approx([0.006, 0.0, 0.005])
    assert sum(one.value for one in found) == pytest.approx(0.009 - 0.006 + 0.008)
    assert [(one.low, one.high) for one in found] == [
        pytest.approx(ends) for ends in [(0.0, 0.019), (0.0, 0.010), (0.0, 0.018)]
    ]


def test_what_is_levelled_out_does_not_hide_that_a_cell_waits_for_data(monkeypatch):
    monkeypatch.setattr(
        waterfall_module, "_compute_losses", lambda found: [Estimate(value=0, low=0, high=0) for _ in found]
    )
    assert fall({**LOST, "data wait": 0.015}).is_data_bound
    assert not fall({**LOST, "data wait": 0.0}).is_data_bound


def test_a_baseline_that_is_slow_beside_itself_makes_no_other_cell_wait_for_data():
    found = timed_turns({**LOST, "data wait": 0.0})
    name = name_data_arm(ONE, "host")
    found.blocks[name] = [replace(block, seconds=1.3 * block.seconds) for block in found.blocks[name]]
    fallen = compute_waterfall(found, baseline=ONE, cell=FOUR, has_copy=True, is_weak=False, ddp_timers={})
    assert fallen.find_lost_seconds("data wait") > 0.1 * fallen.measured_seconds
    assert not fallen.is_data_bound


@pytest.mark.parametrize(("waits", "is_bound"), [(0.0087, False), (0.0090, True)])
def test_waiting_for_data_in_more_than_a_twentieth_of_the_step_is_data_bound(waits, is_bound):
    # The loader makes one rank and four wait alike: nothing is lost to it, and yet the ratio says nothing.
    assert fall({**LOST, "data wait": 0.0}, waits=waits).is_data_bound == is_bound


def test_a_first_rank_with_more_than_its_share_of_the_work_is_the_straggler_and_nothing_else():
    found = fall({**LOST, "straggler": 0.0}, positions=[3, 2, 2, 1])
    alone = COMPUTE / 4 + LOST["optimizer"] / 0.75 + LOST["fixed"] / 0.75
    more = 0.5 * (alone + LOST["contention"] + LOST["DDP overhead"])
    assert {part.name: part.seconds.value for part in found.parts} == pytest.approx({**LOST, "straggler": more})


def test_in_weak_scaling_a_baseline_of_shorter_rows_is_held_against_as_many_tokens():
    short, long = (fall(LOST, is_weak=True, shorter=shorter).ideal_seconds for shorter in (0.5, 1.0))
    assert short == pytest.approx(long)
    assert fall(LOST, is_weak=True).find_lost_seconds("optimizer") == 0


def test_what_ddp_timed_itself_stands_beside():
    timers = {"backward_comm": 0.030, "backward_compute_comm_overlap": 0.012}
    assert fall(LOST, timers=timers).ddp_exposed_communication_seconds == pytest.approx(0.018)
    assert fall(LOST).ddp_exposed_communication_seconds is None


def test_of_stages_the_wait_for_others_and_what_they_take_from_each_other_are_parts_and_the_rest_is_unexplained():
    staged, given = replace(FOUR, strategy="pipeline"), timed_turns(LOST)
    measured = np.mean(given.list_by_turn(FOUR.name))
    ideal = np.mean(given.list_by_turn(ONE.name)) / 4
    found = compute_staged_waterfall(
        given, baseline=ONE, cell=staged, waits=[0.010, 0.011, 0.012, 0.013, 0.014], theory="of stages alike 11 %",
        is_weak=False,
    )  # fmt: skip
    waiting, contention = found.parts
    assert (waiting.name, contention.name) == (WAITING, "contention")
    assert waiting.seconds.value == pytest.approx(0.012)
    assert 0 < waiting.seconds.low < 0.012 < waiting.seconds.high
    assert waiting.how.endswith("of stages alike 11 %")
    assert contention.seconds.value == pytest.approx(LOST["contention"])
    assert (found.measured_seconds, found.ideal_seconds) == (pytest.approx(measured), pytest.approx(ideal))
    assert found.unexplained_seconds == pytest.approx(measured - ideal - 0.012 - LOST["contention"])
    assert found.lost_efficiency == pytest.approx(1 - ideal / measured)
