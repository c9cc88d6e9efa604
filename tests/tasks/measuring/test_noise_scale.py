"""The gradient noise scale against cases whose noise scale is known."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.equivalence.reference.update import BatchSquares, OneProcess
from tasks.measuring.noise_scale import (
    Moments,
    collect_squares,
    estimate_moments,
    estimate_noise_ratio,
    measure_noise_scale,
    split_for_noise,
)
from tests.tasks.equivalence.test_twins import told
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import read_config
from training.process.files import write_json


def draw_quadratic(random: np.random.Generator, sizes: Sequence[int], mean: np.ndarray, spread: float) -> BatchSquares:
    """Return the squares of one batch of the loss |w - x|^2 / 2 at w = 0, where x has this mean and this spread.

    The gradient of a row is -x: the true one is -mean, the trace of its covariance spread^2 for each of its numbers.
    """
    gradients = np.array([-(mean + spread * random.standard_normal((size, len(mean)))).mean(axis=0) for size in sizes])
    whole = np.average(gradients, axis=0, weights=sizes)
    return BatchSquares(sum(sizes), list(sizes), (gradients**2).sum(axis=1).tolist(), float(whole @ whole))


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (1, 5, 2), (8, 1)])
def test_the_moments_of_a_quadratic_are_unbiased_however_unequal_the_parts(sizes: tuple[int, ...]) -> None:
    random, mean = np.random.default_rng(1), np.full(20, 0.2)
    found = np.array([estimate_moments(draw_quadratic(random, sizes, mean, 1.5)) for _ in range(4000)])
    standard_errors = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    expected = Moments(squared_norm=20 * 0.2**2, trace=20 * 1.5**2)
    assert (np.abs(found.mean(axis=0) - expected) < 4 * standard_errors).all()
    assert (standard_errors / expected < [0.2, 0.05]).all(), "or nothing could fail"


def test_the_interval_covers_the_known_noise_scale_of_a_quadratic() -> None:
    random, mean = np.random.default_rng(2), np.full(50, 0.3)
    known, num_covered, values = 1 / 0.3**2, 0, []
    for _ in range(300):
        moments = [estimate_moments(draw_quadratic(random, (4, 4, 4, 4), mean, 1.0)) for _ in range(16)]
        ratio = estimate_noise_ratio(moments)
        assert ratio.value is not None
        assert ratio.high is not None
        assert ratio.low < ratio.value < ratio.high
        num_covered += ratio.low <= known <= ratio.high
        values.append(ratio.value)
    assert np.median(values) == pytest.approx(known, rel=0.05)
    assert 0.91 <= num_covered / 300 <= 0.99


def test_noise_that_hides_the_gradient_gives_a_lower_end_alone() -> None:
    random, mean = np.random.default_rng(3), np.full(50, 0.01)
    ratio = estimate_noise_ratio([estimate_moments(draw_quadratic(random, (4,) * 4, mean, 1.0)) for _ in range(16)])
    assert ratio.high is None
    assert 0 < ratio.low < 1 / 0.01**2
    hidden = [Moments(-1.0, 2.0), Moments(-2.0, 2.1), Moments(-1.5, 2.0), Moments(-1.1, 1.9)]
    assert estimate_noise_ratio(hidden).value is None


def test_one_part_and_few_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        estimate_moments(BatchSquares(4, [4], [1.0], 1.0))
    with pytest.raises(ValueError, match="at least 4"):
        estimate_noise_ratio([Moments(1.0, 1.0)] * 3)


def test_the_estimate_of_a_model_is_that_of_the_gradients_of_all_its_rows(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1)
    make_slice(tmp_path / "0-24", num_rows=24, min_len=12, max_len=12)
    write_json(
        tmp_path / "config.json",
        make_config(
            tmp_path / "work", tmp_path / "model", [tmp_path / "0-24"], global_batch_size=8, micro_batch_size=4
        ),
    )
    config = read_config(tmp_path / "config.json")
    # Directly: the gradient of every row by itself, at the base model's weights.
    rows = OneProcess(dataclasses.replace(config, global_batch_size=1, micro_batch_size=1))
    every = []
    for number in range(1, rows.num_steps + 1):
        (gradient,) = rows.gradient(number, lambda step, _: [[0]]).by_order
        every.append(torch.cat([part.flatten() for part in gradient.values()]).double().numpy())
    gradients = np.array(every)
    trace = float(gradients.var(axis=0, ddof=1).sum())
    squared_norm = float(gradients.mean(axis=0) @ gradients.mean(axis=0)) - trace / len(gradients)

    # In parts of two rows, over many orders: each row is in as many parts.
    parts, num_parts = split_for_noise(config)
    assert (parts.global_batch_size, num_parts) == (2, 4)
    found = []
    for epoch in range(1, 30):
        segments = (dataclasses.replace(config.segments[0], epoch=epoch),)
        found += collect_squares(dataclasses.replace(config, segments=segments), None, num_batches=99)
    moments = np.mean([estimate_moments(one) for one in found], axis=0)
    assert moments[1] == pytest.approx(trace, rel=0.03)
    assert moments[0] == pytest.approx(squared_norm, rel=0.05)
    half = {name: part / 2 for name, part in rows.weights.items()}
    assert collect_squares(config, rows.start_weights, num_batches=1) == found[:1]
    assert collect_squares(config, half, num_batches=1) != found[:1], "which weights is told"


def test_a_point_is_measured_where_there_are_rows_enough(tmp_path: Path) -> None:
    config = told(tmp_path, global_batch_size=4, micro_batch_size=2)
    whole = measure_noise_scale(config, None, epoch=0, num_batches=5)
    assert whole is not None
    assert (whole.range, whole.epoch, whole.num_batches, whole.batch_size, whole.num_parts) == ("0-21", 0, 5, 4, 4)
    assert whole.trace > 0
    assert measure_noise_scale(config, None, epoch=0, num_batches=3) is None
