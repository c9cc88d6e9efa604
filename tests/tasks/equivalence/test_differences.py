"""How far tensors are from what they should be: relative to what changes, and never a pass where it is no number."""

import math

import pytest
import torch

from tasks.equivalence.differences import FP32_EPS, MARGIN, Differences, compare_numbers


def _differ(*tensors):
    """Return the differences of tensors of one number each: found, expected, before, and others that are as right."""
    differences = Differences()
    for name, values in zip("abc", zip(*tensors, strict=True), strict=False):
        mine, its, since, *others = (torch.tensor([value]) for value in values)
        differences.add(name, mine, its, since=since, others=others)
    return differences


def test_a_difference_is_relative_to_the_change_and_names_where_it_is_largest():
    found = _differ([1.0, 2.3], [1.0, 2.2], [1.0, 2.0])
    assert found.compare().difference == pytest.approx(0.5, rel=1e-5)
    assert found.compare().largest_in == "b"
    rounding = FP32_EPS / 2 * math.hypot(1.0, 2.2) / 0.2
    assert found.compare(rounding=0.0).noise_floor == pytest.approx(rounding, rel=1e-5)
    assert found.ratio == pytest.approx(1.5, rel=1e-5)
    nothing = _differ([1.0], [1.0], [1.0])
    assert (nothing.compare().difference, nothing.compare().largest_in, nothing.ratio) == (0.0, None, None)


def test_a_factor_is_told_only_where_it_explains_nearly_all():
    assert _differ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], [0.0] * 3).ratio == pytest.approx(0.5)
    assert _differ([0.5, 0.9, 0.1], [1.0, 1.0, 1.0], [0.0] * 3).ratio is None


def test_ten_times_the_largest_floor_is_allowed_and_other_kernels_are_held_by_their_own_margin():
    found = _differ([1.0], [1.0], [0.0], [1.0 + 2**-10], [1.0 + 2**-5])
    assert found.compare().tolerance == pytest.approx(MARGIN * 2**-5)
    compared = found.compare(num_orders=1, kernel_margin=3.0)
    assert (compared.tolerance, compared.noise_floor) == pytest.approx((3 * 2**-5, 2**-5))
    equal = _differ([1.0], [1.0], [0.0], [1.0])
    assert equal.compare().tolerance == MARGIN * FP32_EPS
    assert equal.compare(rounding=1e-4).tolerance == pytest.approx(1e-3)


@pytest.mark.parametrize(("factor", "noise", "is_lost"), [(0.4, 1e-2, True), (0.6, 1e-2, False), (0.0, 1.0, False)])
def test_a_small_tensor_without_its_gradient_is_seen_where_noise_hides_it_among_all(factor, noise, is_lost):
    # A right one, of 16 bit, is 1 % off; a thousandth of the gradient is noise for all, and not for the norm alone.
    found = _differ([1.01, 1e-3 * factor], [1.0, 1e-3], [0.0, 0.0], [0.99, 1e-3 * (1 + noise)])
    compared = found.compare()
    assert (compared.difference > compared.tolerance, compared.largest_in == "b") == (is_lost, is_lost)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_as_far_as_can_be(value):
    compared = _differ([value], [1.0], [0.0]).compare()
    assert not compared.difference <= compared.tolerance
    assert math.isfinite(compared.difference)
    one = compare_numbers(value, 1.0, 1e-2)
    assert not one.difference <= one.tolerance


def test_where_nothing_should_change_it_is_relative_to_what_is_there():
    assert _differ([2.0 + 2**-20], [2.0], [2.0]).compare().difference == pytest.approx(2**-21)
    assert _differ([1.0], [0.0], [0.0]).compare().difference == 1.0


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_weight_decay_of_a_norm_is_seen_among_millions_of_right_numbers(decay):
    chance, rate, found = torch.Generator().manual_seed(1), 2e-5, Differences()
    for number in range(3):
        start = 0.02 * torch.randn(2_000_000, generator=chance)
        end = start.double() - rate * torch.randn(2_000_000, generator=chance).sign()
        found.add(f"matrix {number}", end.float(), end, since=start)
    start = torch.ones(64)
    found.add("norm", ((1 - rate * decay) * start.double() - rate).float(), start.double() - rate, since=start)
    of_all = found.compare()
    assert of_all.difference < MARGIN * FP32_EPS + 2 * of_all.noise_floor
    compared = found.compare_rounded()
    assert (compared.difference > compared.tolerance, compared.largest_in == "norm") == (decay > 0, decay > 0)


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_a_change_below_what_fp32_keeps_is_told_by_how_often_it_is_rounded_up(factor):
    chance, plain, rounded = torch.Generator().manual_seed(1), Differences(), Differences()
    start, step = (size * torch.randn(1_000_000, generator=chance).double() for size in (0.02, 1e-9))
    end, expected = (start.float().double() - factor * step).float(), start.float().double() - step
    plain.add("matrix", end, expected, since=start.float())
    rounded.add_rounded("matrix", end, [expected, expected + 1e-6], since=start.float())
    assert plain.compare_rounded().tolerance > 1
    compared = rounded.compare_rounded()
    assert compared.tolerance < 0.05
    assert (compared.difference > compared.tolerance) == (factor != 1)
