"""The prediction, against arithmetic by hand."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.measuring.prediction import (
    WORLD_SIZES,
    ModelError,
    list_levers,
    make_prediction,
    predict,
    read_model_error,
)
from tasks.measuring.probe import Gradient, Probe, Swept, compute_expected_maximum
from tasks.records.estimate import Estimate
from tasks.records.predicted import Prediction
from training.data.plan import StepPlan

_MIB = 2**20
AS_FORETOLD = Estimate(value=2.0, low=1.5, high=2.5)
"""Measured on two ranks: nothing that the model is at odds with."""


def _probe(*, seconds_per_byte: Mapping[int, float] | float = 0.0, **changes: Any) -> Probe:
    """Return a device whose link has no latency: forward 1 s, backward 2 s, 4 buckets of 1 MiB, 4 micro-batches."""
    per_byte = seconds_per_byte if isinstance(seconds_per_byte, Mapping) else {2: seconds_per_byte}
    buckets = tuple(Gradient(num_bytes=_MIB, ready=share) for share in (0.25, 0.5, 0.75, 1.0))
    sizes = (_MIB / 8, _MIB / 2, _MIB, 8 * _MIB)
    figures: dict[str, Any] = {
        "strategy": "ddp",
        "forward_seconds": (1.0,),
        "backward_seconds": (2.0,),
        "optimizer_seconds": (0.0,),
        "fixed_seconds": {1: (0.0,)},
        "micro_batches": (1.0,) * 4,
        "gradients": buckets,
        "buckets": buckets,
        "links": {
            # Below any clock, so that its logarithm is a number.
            "all_reduce": {
                n: tuple(Swept(num_bytes=size, seconds=(max(size * each, 1e-15),)) for size in sizes)
                for n, each in per_byte.items()
            }
        },
        "contention": {},
        **changes,
    }
    return Probe(**figures)


def _speedup(probe: Probe, world_size: int = 2) -> float:
    return predict(probe, [world_size], num_draws=1, seed=0)[world_size].value


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_without_communication_n_ranks_are_n_times_as_fast(world_size: int) -> None:
    assert _speedup(_probe(), world_size) == pytest.approx(world_size, rel=1e-12)


def test_what_does_not_shrink_with_the_ranks_bounds_the_speedup() -> None:
    probe = _probe(optimizer_seconds=(1.5,), fixed_seconds={1: (0.5,)})
    assert _speedup(probe) == pytest.approx((12 + 2) / (6 + 2), rel=1e-12)


def test_an_infinitely_slow_link_leaves_nothing_but_communication() -> None:
    # After forward, the earlier micro-batch and a quarter of backward only the link works.
    per_byte = 1e6 / _MIB
    assert _speedup(_probe(seconds_per_byte=per_byte)) == pytest.approx(12 / (3 + 1 + 0.5 + 4e6), rel=1e-9)


def test_a_link_that_keeps_up_exposes_the_last_bucket_only() -> None:
    # A bucket takes 0.1 s, a quarter of backward 0.5 s.
    assert _speedup(_probe(seconds_per_byte=0.1 / _MIB)) == pytest.approx(12 / (6 + 0.1), rel=1e-9)


def test_communication_in_flight_slows_computing_and_only_then() -> None:
    # Of every 0.5 s of backward the link is busy 0.1 s after its begin, in which 0.05 s of it are done: + 0.05, thrice.
    slow = _probe(seconds_per_byte=0.1 / _MIB, in_flight_slowdown=(2.0,))
    assert _speedup(slow) == pytest.approx(12 / (6 + 3 * 0.05 + 0.1), rel=1e-9)


def test_a_wrapper_delays_every_bucket() -> None:
    assert _speedup(_probe(wrapper_seconds=(0.4,))) == pytest.approx(12 / (6 + 0.4), rel=1e-9)


def test_a_wrappers_cost_grows_with_the_number_of_buckets() -> None:
    halves = tuple(Gradient(num_bytes=2 * _MIB, ready=share) for share in (0.5, 1.0))
    probe = _probe(wrapper_seconds=(0.4,), buckets=halves)
    assert _speedup(probe) == pytest.approx(12 / (6 + 0.4), rel=1e-9)
    assert _speedup(probe.rebuild_buckets(_MIB)) == pytest.approx(12 / (6 + 0.8), rel=1e-9)


def test_copying_is_paid_for_every_micro_batch() -> None:
    shared = _probe(copy_seconds={1: (0.5,), 2: (0.75,)}, fixed_seconds={1: (1.0,)})
    assert _speedup(shared) == pytest.approx((12 + 4 * 0.5 + 1) / (6 + 2 * 0.75 + 1), rel=1e-12)
    # Beyond, as on the most ranks measured.
    assert _speedup(shared, 4) == pytest.approx((12 + 4 * 0.5 + 1) / (3 + 0.75 + 1), rel=1e-12)
    # Copying that noise made shorter than nothing takes no time.
    assert _speedup(_probe(copy_seconds={1: (-0.5,)})) == pytest.approx(2.0, rel=1e-12)


def test_contention_between_two_measured_numbers_of_ranks_is_between_theirs() -> None:
    probe = _probe(contention={2: (1.2,), 4: (2.0,)}, micro_batches=(1.0,) * 6)
    assert _speedup(probe, 3) == pytest.approx(18 / (6 * 1.6), rel=1e-12)


def test_contention_slows_all_that_a_rank_does_by_itself() -> None:
    probe = _probe(contention={2: (1.2,)}, optimizer_seconds=(1.0,))
    assert _speedup(probe) == pytest.approx(13 / ((6 + 1) * 1.2), rel=1e-12)
    # By every further rank as much, up to those of one machine.
    assert _speedup(probe, 4) == pytest.approx(13 / ((3 + 1) * 1.6), rel=1e-12)
    capped = dataclasses.replace(probe, ranks_per_machine=2)
    assert _speedup(capped, 4) == pytest.approx(13 / ((3 + 1) * 1.2), rel=1e-12)


def test_a_straggler_costs_the_expected_maximum_of_the_ranks_spreads() -> None:
    probe = _probe(spread_seconds={2: (0.2,)})
    assert _speedup(probe) == pytest.approx(12 / (6 + 0.2 * math.sqrt(2) * 1 / math.sqrt(math.pi)), rel=1e-6)
    # Half the micro-batches, so spread by the root of a half.
    assert _speedup(probe, 4) == pytest.approx(12 / (3 + 0.2 * compute_expected_maximum(4)), rel=1e-6)


@pytest.mark.parametrize(("num_micro_batches", "world_size", "rounds"), [(4, 3, 2), (4, 8, 1), (7, 2, 4), (8, 4, 2)])
def test_micro_batches_that_do_not_divide_cost_a_round_more(
    num_micro_batches: int, world_size: int, rounds: int
) -> None:
    probe = _probe(micro_batches=(1.0,) * num_micro_batches)
    assert _speedup(probe, world_size) == pytest.approx(num_micro_batches / rounds, rel=1e-12)


def test_the_busiest_rank_is_the_one_of_the_plan_that_training_deals_by() -> None:
    drawn = np.sort(np.random.default_rng(3).uniform(0.5, 2.0, size=11))[::-1]
    probe = _probe(micro_batches=tuple((drawn / drawn.mean()).tolist()))
    plan = StepPlan(micro_batches=tuple(np.array([index]) for index in range(11)), num_tokens=0, num_targets=0)
    for world_size in (1, 2, 3, 4, 8, 16):
        dealt = [
            [part for part in plan.select_for_rank(rank, world_size) if part is not None] for rank in range(world_size)
        ]
        busiest = max(dealt, key=lambda parts: sum(probe.micro_batches[part] for part in parts))
        works = probe.list_busiest_works(world_size, world_size)
        assert sorted(works) == sorted(probe.micro_batches[part] for part in busiest)
        assert works[0] == probe.micro_batches[busiest[-1]]


def test_weak_scaling_compares_n_times_the_work() -> None:
    probe = _probe(seconds_per_byte=0.1 / _MIB, scaling="weak")
    assert _speedup(probe) == pytest.approx(2 * 12 / (12 + 0.1), rel=1e-9)


# ------------------------------------------------- a pair of T4s, Qwen2-0.5B: a head of 27.56 % whose gradient is last

_HEAD = 0.2756
_RHO = 0.98
"""Seconds of exchanging all gradients / seconds of a micro-batch on one GPU, of which forward is a third."""


def _t4(num_per_rank: int, *, optimizer: float = 0.0) -> Probe:
    """Return the pair of T4s: after the head's backward come gradients in small buckets, and the head's own at the end.

    An optimizer step in micro-batches.
    """
    body = tuple(
        Gradient(num_bytes=(1 - _HEAD) / 4000 * 2**30, ready=_HEAD + (1 - _HEAD) * (index + 1) / 4000)
        for index in range(4000)
    )
    buckets = (*body, Gradient(num_bytes=_HEAD * 2**30, ready=1.0))
    sizes = (2**10, 2**14, 2**20, 2**30)
    return _probe(
        forward_seconds=(1 / 3,),
        backward_seconds=(2 / 3,),
        optimizer_seconds=(optimizer,),
        micro_batches=(1.0,) * (2 * num_per_rank),
        gradients=buckets,
        buckets=buckets,
        links={"all_reduce": {2: tuple(Swept(num_bytes=size, seconds=(_RHO * size / 2**30,)) for size in sizes)}},
    )


def test_exchanging_at_every_micro_batch_on_two_t4_is_1_34_times_as_fast() -> None:
    last_through = 2 / 3 * _HEAD + _RHO
    assert _speedup(_t4(1)) == pytest.approx(2 / (1 / 3 + last_through), rel=1e-3)
    assert _speedup(_t4(1)) == pytest.approx(1.34, abs=0.005)


def test_no_sync_brings_two_t4_to_1_85_and_16_bits_to_1_93() -> None:
    # 8 micro-batches per rank, and an update that takes 0.3 of one.
    once, update, exposed = 8.0, 0.3, 1 / 3 + 2 / 3 * _HEAD + _RHO - 1
    probe = _t4(8, optimizer=update)
    assert _speedup(probe) == pytest.approx((2 * once + update) / (once + exposed + update), rel=1e-3)
    assert _speedup(probe) == pytest.approx(1.85, abs=0.005)
    # At half the bytes backward hides all but the head's.
    halved = probe.scale_gradient_bytes(0.5)
    by_hand = (2 * once + update) / (once + _HEAD * _RHO / 2 + update)
    assert _speedup(halved) == pytest.approx(by_hand, rel=1e-3)
    assert _speedup(halved) == pytest.approx(1.93, abs=0.005)


def test_without_an_update_accumulation_divides_the_exposed_communication() -> None:
    exposed = 1 / 3 + 2 / 3 * _HEAD + _RHO - 1
    for num in (2, 8):
        assert _speedup(_t4(1).scale_accumulation(num)) == pytest.approx(2 / (1 + exposed / num), rel=1e-3)


# --------------------------------------------------------------------------------------- intervals and what is printed


def test_the_interval_is_as_wide_as_the_repeats_are_apart() -> None:
    random = np.random.default_rng(5)

    def width(cv: float, num_repeats: int = 9) -> float:
        repeats = tuple((2 * np.exp(random.normal(0, cv, num_repeats))).tolist())
        found = predict(_probe(seconds_per_byte=0.5 / _MIB, backward_seconds=repeats), [2], seed=1)[2]
        assert found.low <= found.value <= found.high
        return found.high - found.low

    assert width(0.0) == pytest.approx(0.0, abs=1e-12)
    assert width(0.02) < width(0.2)


def test_latency_measured_on_two_ranks_only_is_uncertain_on_four_and_not_on_two() -> None:
    # One bucket at the end, 0.6 s of latency whatever its size.
    sizes = (_MIB / 8, _MIB, 8 * _MIB)
    flat = {2: tuple(Swept(num_bytes=size, seconds=(0.6,)) for size in sizes)}
    probe = _probe(buckets=(Gradient(num_bytes=_MIB, ready=1.0),), links={"all_reduce": flat})
    found = predict(probe, [2, 4], seed=1, num_draws=20_000)
    assert found[2].low == found[2].high == pytest.approx(12 / (6 + 0.6), rel=1e-9)
    assert found[4].value == pytest.approx(12 / (3 + 0.6 * math.sqrt(3)), rel=1e-3)
    # 5 and 95 % of the powers from 0 to 1.
    assert found[4].high == pytest.approx(12 / (3 + 0.6 * 3**0.05), rel=1e-2)
    assert found[4].low == pytest.approx(12 / (3 + 0.6 * 3**0.95), rel=1e-2)


@pytest.mark.parametrize("hops", [1, 3])
def test_a_sweep_of_more_ranks_than_any_cell_has_tells_how_latency_grows(hops: int) -> None:
    sizes = (_MIB / 8, _MIB, 8 * _MIB)
    swept = {
        n: tuple(Swept(num_bytes=size, seconds=(0.6 * times,)) for size in sizes) for n, times in ((2, 1), (4, hops))
    }
    last = (Gradient(num_bytes=_MIB, ready=1.0),)
    probe = _probe(buckets=last, links={"all_reduce": swept}, link_only=frozenset([4]))
    found = predict(probe, [4], seed=1)[4]
    assert found.low == found.high == pytest.approx(12 / (3 + 0.6 * hops), rel=1e-9)
    assert probe.measured_world_sizes == [2]
    unknown = predict(probe.drop_link_only(), [4], seed=1)[4]
    assert unknown.low < 12 / (3 + 0.6 * 2) < unknown.high
    record = make_prediction(probe, measured={2: AS_FORETOLD}, seed=1, model_error=None)
    assert [point.is_extrapolated for point in record.curves[0].points] == [False, True]
    assert "measured with 2 and 4 ranks" in " ".join(record.assumptions)


def test_the_same_seed_gives_the_same_interval() -> None:
    repeats = tuple(np.random.default_rng(1).normal(2.0, 0.1, 20).tolist())
    probe = _probe(seconds_per_byte=0.5 / _MIB, backward_seconds=repeats)
    assert predict(probe, [2], seed=1) == predict(probe, [2], seed=1) != predict(probe, [2], seed=2)


def test_the_models_own_error_widens_the_interval_and_more_so_beyond_what_was_measured() -> None:
    error = ModelError(
        relative=0.05, relative_link_only=0.07, relative_extrapolated=0.1,
        calibrated_on="2025-11-21", num_configurations=12,
    )  # fmt: skip
    found = predict(_probe(), [1, 2, 4], seed=1, num_draws=20_000, model_error=error)
    # 90 % of Student's t with 12 degrees of freedom: the table's 1.782.
    assert math.log(found[2].high / 2) == pytest.approx(1.782 * 0.05, rel=0.05)
    assert math.log(found[2].low / 2) == pytest.approx(-1.782 * 0.05, rel=0.05)
    assert math.log(found[4].high / 4) == pytest.approx(1.782 * 0.1, rel=0.05)
    assert found[1] == Estimate(value=1.0, low=1.0, high=1.0)
    swept = predict(
        _probe(seconds_per_byte={2: 0.0, 4: 0.0}, link_only=frozenset([4])), [4, 8], seed=1, num_draws=20_000,
        model_error=error,
    )  # fmt: skip
    assert math.log(swept[4].high / 4) == pytest.approx(1.782 * 0.07, rel=0.05)
    assert math.log(swept[8].high / 4) == pytest.approx(1.782 * 0.1, rel=0.05)


def test_an_error_that_nobody_calibrated_is_not_made_up(tmp_path: Path) -> None:
    assert read_model_error(tmp_path / "none.json") is None
    record = make_prediction(_probe(), measured={2: AS_FORETOLD}, seed=1, model_error=None)
    assert "was not calibrated" in record.assumptions[-1]
    figures = {
        "relative": 0.05, "relative_link_only": 0.07, "relative_extrapolated": 0.1,
        "calibrated_on": "2025-11-21", "num_configurations": 12,
    }  # fmt: skip
    (tmp_path / "some.json").write_text(json.dumps(figures))
    calibrated = make_prediction(
        _probe(), measured={2: AS_FORETOLD}, seed=1, model_error=read_model_error(tmp_path / "some.json")
    )
    assert (
        "5.0% at measured numbers of ranks, 7.0% where only the link was measured and 10.0% beyond"
        in calibrated.assumptions[-1]
    )
    assert "12 configurations on 2025-11-21" in calibrated.assumptions[-1]


def test_every_lever_against_exposed_communication_helps_and_buckets_are_split() -> None:
    one_bucket = _probe(
        seconds_per_byte=0.5 / _MIB,
        gradients=tuple(Gradient(num_bytes=_MIB, ready=share) for share in (0.25, 0.5, 0.75, 1.0)),
        buckets=(Gradient(num_bytes=4 * _MIB, ready=1.0),),
    )
    # 2 s for all of it, and nothing can be hidden.
    assert _speedup(one_bucket) == pytest.approx(12 / (6 + 2), rel=1e-9)
    found = {lever: _speedup(changed) for lever, changed in list_levers(one_bucket)}
    assert list(found) == [
        "twice the global batch, as twice the micro-batches per step",
        "gradients exchanged in 16 bits",
        "gradient buckets of 1 MiB",
        "a link twice as fast",
    ]
    assert list(found.values()) == pytest.approx([24 / (12 + 2), 12 / (6 + 1), 12 / (6 + 0.5), 12 / (6 + 1)], rel=1e-9)


# --------------------------------------------------------------------------------- the curve through what was measured


def _predict(measured: dict[int, Estimate], *, world_sizes: Sequence[int] = WORLD_SIZES, **changes: Any) -> Prediction:
    """Return the record of 8 micro-batches on a link that exposes 0.1 s of a step."""
    figures = {"seconds_per_byte": 0.1 / _MIB, "micro_batches": (1.0,) * 8, **changes}
    return make_prediction(_probe(**figures), measured=measured, seed=1, model_error=None, world_sizes=world_sizes)


def test_the_curve_goes_through_the_measured_speedup_and_the_model_says_how_it_goes_on() -> None:
    # By itself the model says 24 / 12.1 on two ranks and 24 / (6 + 0.15) on four: their ring moves 3/2 of the bytes.
    as_is, *_ = _predict({2: Estimate(value=1.9, low=1.8, high=2.0)}).curves
    two, four, eight = as_is.points
    assert (two.world_size, two.speedup, two.measured) == (2, None, Estimate(value=1.9, low=1.8, high=2.0))
    assert two.shown == two.measured
    assert two.model is not None
    assert two.model.value == pytest.approx(24 / 12.1)
    assert two.model_error == pytest.approx(24 / 12.1 / 1.9 - 1)
    assert (four.world_size, four.measured, four.model, four.model_error) == (4, None, None, None)
    assert four.speedup is not None
    assert four.speedup.value == pytest.approx(1.9 * 12.1 / 6.15)
    assert eight.shown.value == pytest.approx(1.9 * 12.1 / (3 + 0.1 * 2 * 7 / 8))
    assert [point.is_extrapolated for point in as_is.points] == [False, True, True]


def test_the_interval_of_the_measured_speedup_is_in_every_further_point() -> None:
    # Without noise in the model it is all there is: 90 % where the measured one is 95 %, each side for itself.
    as_is = _predict({2: Estimate(value=1.9, low=1.8, high=2.05)}).curves[0]
    for point in as_is.points[1:]:
        assert point.speedup is not None
        assert math.log(point.speedup.high / point.speedup.value) == pytest.approx(
            math.log(2.05 / 1.9) * 1.6449 / 1.96, rel=0.06
        )
        assert math.log(point.speedup.low / point.speedup.value) == pytest.approx(
            math.log(1.8 / 1.9) * 1.6449 / 1.96, rel=0.06
        )


def test_noise_that_is_in_the_model_at_both_numbers_of_ranks_moves_none_of_them() -> None:
    # What a micro-batch takes is all of the step, so that the curve is as straight whatever its noise.
    noisy = tuple(np.random.default_rng(2).normal(2.0, 0.5, 9).tolist())
    exact = Estimate(value=2.0, low=2.0, high=2.0)
    as_is = _predict({2: exact}, seconds_per_byte=0.0, backward_seconds=noisy, forward_seconds=(1e-9,)).curves[0]
    assert [point.shown.value for point in as_is.points] == pytest.approx([2.0, 4.0, 8.0])
    assert [point.shown.high / point.shown.low for point in as_is.points] == pytest.approx([1.0] * 3)


def test_of_several_measured_numbers_of_ranks_the_curve_begins_at_the_largest() -> None:
    measured = {2: Estimate(value=1.9, low=1.8, high=2.0), 4: Estimate(value=3.8, low=3.5, high=4.1)}
    found = _predict(measured, seconds_per_byte={2: 0.1 / _MIB, 4: 0.1 / _MIB}).curves[0].points
    assert [(point.measured is None, point.model_error is None) for point in found] == [(False, False)] * 2 + [
        (True, True)
    ]
    assert found[1].model_error == pytest.approx(24 / 6.1 / 3.8 - 1)
    assert found[2].shown.value == pytest.approx(3.8 * 6.1 / (3 + 0.1 * (7 / 8) / (3 / 4)), rel=1e-3)


def test_the_curve_after_a_change_is_what_the_change_makes_of_the_measured_speedup() -> None:
    found = {one.lever: one.points for one in _predict({2: Estimate(value=1.9, low=1.8, high=2.0)}).curves}
    twice_as_fast = {point.world_size: point for point in found["a link twice as fast"]}
    # Half of the 0.1 s, at what two ranks were measured as well.
    assert twice_as_fast[2].shown.value == pytest.approx(1.9 * 12.1 / 12.05)
    assert (twice_as_fast[2].measured, twice_as_fast[2].model) == (None, None)
    assert twice_as_fast[4].shown.value == pytest.approx(1.9 * 12.1 / 6.075)


def test_where_model_and_measurement_have_no_speedup_in_common_further_ranks_are_withheld() -> None:
    record = _predict({2: Estimate(value=1.5, low=1.4, high=1.6)})
    assert [[point.world_size for point in one.points] for one in record.curves] == [[2]]
    assert record.curves[0].points[0].model_error == pytest.approx(24 / 12.1 / 1.5 - 1)
    assert record.left_out == [
        "Other numbers of ranks are withheld: for 2 the model alone says 1.98x (1.9835 to 1.9835) and measured is "
        "1.50x (1.40 to 1.60); the two intervals do not overlap, so something is at work here that the model does not "
        "know."
    ]
    # The model's own error is part of its interval.
    error = ModelError(
        relative=0.2, relative_link_only=0.2, relative_extrapolated=0.2, calibrated_on="2026-01-31",
        num_configurations=8,
    )  # fmt: skip
    probe = _probe(seconds_per_byte=0.1 / _MIB, micro_batches=(1.0,) * 8)
    wider = make_prediction(probe, measured={2: Estimate(value=1.5, low=1.4, high=1.6)}, seed=1, model_error=error)
    assert len(wider.curves[0].points) > 1
    assert not any("withheld" in sentence for sentence in wider.left_out)


def test_as_many_ranks_as_have_no_micro_batch_each_are_not_predicted_in_strong_scaling() -> None:
    measured = {2: Estimate(value=1.9, low=1.8, high=2.0)}
    as_is, *levers = (record := _predict(measured)).curves
    assert [point.world_size for point in as_is.points] == [2, 4, 8]
    assert record.left_out == [
        "From 9 ranks on nothing is predicted: in strong scaling the number of micro-batches per step stays 8, and a "
        "rank would have none. A change that makes more of them moves that number."
    ]
    sizes = {one.lever: [point.world_size for point in one.points] for one in levers}
    assert sizes["twice the global batch, as twice the micro-batches per step"] == [2, 4, 8, 16]
    assert sizes["a link twice as fast"] == [2, 4, 8]
    # In weak scaling, and with a micro-batch for each of the most ranks asked for, there is nothing to leave out.
    assert _predict(measured, scaling="weak").left_out == _predict(measured, world_sizes=(2, 8)).left_out == []
    assert [point.world_size for point in _predict(measured, scaling="weak").curves[0].points] == [2, 4, 8, 16, 64]


def test_gradients_in_16_bits_are_no_change_where_they_are_so_already_and_buckets_still_fill_by_fp32() -> None:
    plain = _probe(seconds_per_byte=0.001 / _MIB)
    halved = dataclasses.replace(plain.scale_gradient_bytes(0.5), is_16_bit=True)
    before, after = dict(list_levers(plain)), dict(list_levers(halved))
    assert before.keys() - after.keys() == {"gradients exchanged in 16 bits"}
    # Four gradients of 1 MiB in fp32: two fill a bucket of 2 MiB, however few bytes the link carries of them.
    assert len(after["gradient buckets of 2 MiB"].buckets) == 2


def test_larger_batches_begin_at_what_was_measured_and_pay_the_update_and_the_exchange_less_often() -> None:
    # A micro-batch takes 3 s, the update 2 s; the link is free: 4 micro-batches take one rank 14 s, two ranks 8 s.
    probe = _probe(optimizer_seconds=(2.0,))
    measured = {2: Estimate(value=1.6, low=1.5, high=1.8)}
    found = make_prediction(probe, measured=measured, seed=0, model_error=None, world_sizes=(2, 8)).batches
    values = {(one.world_size, one.factor): one.throughput for one in found}
    assert (1, 1) not in values, "that is the baseline itself"
    assert values[2, 1] == measured[2]
    assert values[1, 4].value == pytest.approx(4 * 14 / (4 * 12 + 2))
    # The model alone gives 14 / 8 on two ranks; of twice the batch 2 * 14 / (12 + 2).
    assert values[2, 2].value == pytest.approx(1.6 * (2 * 14 / 14) / (14 / 8))
    assert values[2, 2].low < values[2, 2].value < values[2, 2].high
    assert (8, 1) not in values, "a rank without a micro-batch"
    assert (8, 2) in values
