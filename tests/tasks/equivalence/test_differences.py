"""Differences between tensors, and what of them is allowed, recomputed by hand."""

import math

import pytest
import torch

from tasks.equivalence.differences import FP32_EPS, MARGIN, compute_difference, compute_tolerance


def test_a_difference_is_that_of_all_tensors_together() -> None:
    expected = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    found = {"a": torch.tensor([3.0, 0.5]), "b": torch.tensor([[4.25]])}
    got = compute_difference(found, expected)
    assert got.max_abs == 0.5
    assert got.relative_l2 == pytest.approx(math.sqrt(0.25 + 0.0625) / 5)
    assert not got.is_bitwise_equal
    assert got.largest_in == "a"


def test_equal_tensors_are_bitwise_equal_and_nothing_apart() -> None:
    tensors = {"a": torch.randn(5), "b": torch.zeros(0)}
    got = compute_difference(tensors, {name: part.clone() for name, part in tensors.items()})
    assert (got.max_abs, got.relative_l2, got.is_bitwise_equal, got.largest_in) == (0.0, 0.0, True, None)


def test_a_difference_far_below_the_sum_is_still_seen() -> None:
    expected = {"large": torch.full((1000,), 1e3), "small": torch.tensor([1e-3])}
    got = compute_difference({**expected, "small": torch.tensor([2e-3])}, expected)
    assert got.relative_l2 == pytest.approx(1e-3 / math.sqrt(1000 * 1e6), rel=1e-3)
    assert got.largest_in == "small"


def test_nan_is_never_within_a_tolerance() -> None:
    got = compute_difference({"a": torch.tensor([math.nan])}, {"a": torch.ones(1)})
    assert not got.relative_l2 <= compute_tolerance(1.0)


@pytest.mark.parametrize(
    ("found", "words"), [({}, "a is missing"), ({"a": torch.ones(3)}, r"a is of shape \[3\]")]
)  # fmt: skip
def test_a_missing_tensor_or_another_shape_is_refused(found: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compute_difference(found, {"a": torch.ones(2)})


def test_the_tolerance_is_a_multiple_of_the_floor_and_never_below_that_of_fp32_rounding() -> None:
    assert compute_tolerance(3e-6) == MARGIN * 3e-6
    assert compute_tolerance(0.0) == compute_tolerance(FP32_EPS / 2) == MARGIN * FP32_EPS
    assert torch.finfo(torch.float32).eps == FP32_EPS
