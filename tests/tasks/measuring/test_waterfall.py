"""The chain of counterfactuals, on seconds made up so that every part is known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tasks.measuring import waterfall as waterfall_module
from tasks.measuring.arms import Cell, make_spreading_arms, name_data_arm
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


def timed_turns(lost, *, waits=0.0, positions=(2, 2, 2, 2), shorter=1.0, beside=1.0):
    """Return rounds without noise, of ranks that lose this much.

    `positions`: of each rank, whose seconds are as many times the even share's; `shorter`: the baseline's rows;
    `beside`: how many times as slow as itself the baseline is with its micro-batches on the host.
    """
    optimizer, fixed = lost["optimizer"] / 0.75, lost["fixed"] / 0.75
    alone = COMPUTE / 4 + optimizer + fixed
    copies = alone + lost["contention"]
    shares = np.array(positions) / np.mean(positions)
    # One rank of four is slower than the others, always and at everything.
    late = np.array([0, 0, 0, lost["straggler"]])
    silent = (copies + lost["DDP overhead"]) * shares + late
    device = np.full(4, silent.max() + lost["exposed communication"])
    host = device + lost["host-to-device copy"]
    whole = np.array([(COMPUTE + optimizer + fixed) * shorter])
    no_communication, together, lone, update = (arm.name for arm in make_spreading_arms(FOUR))
    seconds = {
        ONE.name: whole,
        name_data_arm(ONE, "host"): whole * beside,
        name_data_arm(ONE, "device"): whole,
        FOUR.name: host + lost["data wait"],
        name_data_arm(FOUR, "host"): host,
        name_data_arm(FOUR, "device"): device,
        no_communication: silent,
        together: copies * shares + late,
        lone: alone * shares[:1],
        update: [optimizer],
    }
    found = TimedTurns()
    for (name, ranks), turn in itertools.product(seconds.items(), range(16)):
        block = make_block(
            np.array(ranks)[:, None].repeat(3, axis=1), arm=name, turn=turn, positions_by_rank=list(positions),
            num_tokens=round(8 * shorter) if name.startswith(ONE.name) else 8 * FOUR.world_size,
            data_wait_seconds=waits * (name == FOUR.name),
        )  # fmt: skip
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
    assert found.lost_efficiency == pytest.approx(1 - found.ideal_seconds / found.measured_seconds)


def test_a_part_below_zero_is_no_loss_and_stays_unexplained():
    found = fall(LOST | {"DDP overhead": -0.004})
    assert found.find_lost_seconds("DDP overhead") == 0
    assert found.unexplained_seconds == pytest.approx(-0.004)


def test_noise_in_one_arm_is_levelled_out_between_the_two_parts_that_share_it():
    # The lone copy had bad luck for half of the time: contention seems below 0, and what is fixed too large by as much.
    noisy = [Estimate(seconds, seconds - 0.010, seconds + 0.010) for seconds in (0.009, -0.006, 0.008)]
    found = waterfall_module._compute_losses(noisy)
    assert [one.value for one in found] == pytest.approx([0.006, 0.0, 0.005])
    assert [one.low for one in found] == pytest.approx([0.0] * 3)
    assert [one.high for one in found] == pytest.approx([0.019, 0.010, 0.018])


@pytest.mark.parametrize(
    ("wait", "waits", "beside", "is_bound"),
    [
        (0.015, 0.0, 1.0, True),
        # The loader makes one rank and four wait alike: nothing is lost to it, and yet the ratio says nothing.
        (0.0, 0.0087, 1.0, False),
        (0.0, 0.0090, 1.0, True),
        # A baseline that is slow beside itself makes no other cell wait.
        (0.0, 0.0, 1.3, False),
    ],
)
def test_waiting_for_data_in_more_than_a_twentieth_of_the_step_is_data_bound_whatever_is_levelled_out(
    wait, waits, beside, is_bound, monkeypatch
):
    nothing = Estimate(value=0, low=0, high=0)
    monkeypatch.setattr(waterfall_module, "_compute_losses", lambda found: [nothing] * len(found))
    assert fall(LOST | {"data wait": wait}, waits=waits, beside=beside).is_data_bound == is_bound


def test_a_first_rank_with_more_than_its_share_of_the_work_is_the_straggler_and_nothing_else():
    found = fall(LOST | {"straggler": 0.0}, positions=[3, 2, 2, 1])
    alone = COMPUTE / 4 + LOST["optimizer"] / 0.75 + LOST["fixed"] / 0.75
    more = 0.5 * (alone + LOST["contention"] + LOST["DDP overhead"])
    assert {part.name: part.seconds.value for part in found.parts} == pytest.approx(LOST | {"straggler": more})


def test_in_weak_scaling_a_baseline_of_shorter_rows_is_held_against_as_many_tokens():
    short, long = (fall(LOST, is_weak=True, shorter=shorter).ideal_seconds for shorter in (0.5, 1.0))
    assert short == pytest.approx(long)
    assert fall(LOST, is_weak=True).find_lost_seconds("optimizer") == 0


def test_what_ddp_timed_itself_stands_beside():
    timers = {"backward_comm": 0.030, "backward_compute_comm_overlap": 0.012}
    assert fall(LOST, timers=timers).ddp_exposed_communication_seconds == pytest.approx(0.018)
    assert fall(LOST).ddp_exposed_communication_seconds is None


def test_of_stages_the_wait_for_others_and_what_they_take_from_each_other_are_parts():
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
    assert (found.measured_seconds, found.ideal_seconds) == pytest.approx((measured, ideal))
