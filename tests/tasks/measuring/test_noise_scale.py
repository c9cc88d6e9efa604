"""The gradient noise scale against cases whose noise scale is known."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.equivalence.reference.batch_squares import (
    BatchSquares,
    SecondMoments,
    add_in_place,
    add_squares,
    read_second_moments,
)
from tasks.equivalence.reference.update import OneProcess, order_as_one_rank
from tasks.measuring.noise_scale import (
    Moments,
    collect_squares,
    estimate_moments,
    estimate_noise_ratio,
    is_known,
    measure_noise_scale,
    split_for_noise,
)
from tasks.records.noise_scale import NoiseScale
from tests.held_numbers import HeldNumbers
from tests.tasks.equivalence.test_twins import told
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import TrainingConfig, read_config
from training.data.batches import IGNORED_LABEL
from training.process.files import write_json


def draw_quadratic(random: np.random.Generator, sizes: Sequence[int], mean: np.ndarray, spread: float) -> BatchSquares:
    """Return the squares of one batch of the loss |w - x|^2 / 2 at w = 0, where x has this mean and this spread.

    The gradient of a row is -x: the true one is -mean, the trace of its covariance spread^2 for each of its numbers.
    """
    gradients = np.array([-(mean + spread * random.standard_normal((size, len(mean)))).mean(axis=0) for size in sizes])
    whole = np.average(gradients, axis=0, weights=sizes)
    mean_square = float(np.average((gradients**2).sum(axis=1), weights=sizes))
    return BatchSquares(sum(sizes), list(sizes), mean_square, float(whole @ whole))


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
        estimate_moments(BatchSquares(4, [4], 1.0, 1.0))
    with pytest.raises(ValueError, match="at least 4"):
        estimate_noise_ratio([Moments(1.0, 1.0)] * 3)


def test_the_estimate_of_a_model_is_that_of_the_gradients_of_all_its_rows(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1)
    make_slice(tmp_path / "0-24", num_rows=24, min_len=12, max_len=12)
    write_json(
        tmp_path / "config.json",
        make_config(
            tmp_path / "work", tmp_path / "model", [tmp_path / "0-24"], global_batch_size=8, micro_batch_size=4,
            optimizer="sgd",
        ),
    )  # fmt: skip
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
        found += collect_squares(dataclasses.replace(config, segments=segments), None, num_batches=99)[0]
    moments = np.mean([estimate_moments(one) for one in found], axis=0)
    assert moments[1] == pytest.approx(trace, rel=0.03)
    assert moments[0] == pytest.approx(squared_norm, rel=0.05)
    half = {name: part / 2 for name, part in rows.weights.items()}
    assert collect_squares(config, rows.start_weights, num_batches=1)[0] == found[:1]
    assert collect_squares(config, half, num_batches=1)[0] != found[:1], "which weights is told"


def test_a_point_is_measured_where_there_are_rows_enough(tmp_path: Path) -> None:
    config = told(tmp_path, global_batch_size=4, micro_batch_size=2)
    whole = measure_noise_scale(config, None, epoch=0, num_batches=5)
    assert whole is not None
    assert (whole.range, whole.epoch, whole.num_batches, whole.batch_size, whole.num_parts) == ("0-21", 0, 5, 4, 4)
    assert whole.trace > 0
    assert measure_noise_scale(config, None, epoch=0, num_batches=3) is None


def test_second_moments_go_on_as_adamw_s_own_do_and_stretch_by_their_root() -> None:
    random = torch.Generator().manual_seed(1)
    weights = [torch.zeros(3, 2, requires_grad=True), torch.zeros(4, requires_grad=True)]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), lr=0.0)
    moments = SecondMoments(beta2=0.95, max_norm=1.0)
    for turn in range(5):
        gradient = [torch.randn(part.shape, generator=random) * (turn + 0.01) for part in weights]
        for part, own in zip(weights, gradient, strict=True):
            part.grad = own.clone()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        counts = list(moments.take(gradient))
    assert counts[1] is not None
    for place, part in enumerate(weights):
        torch.testing.assert_close(moments.squares[place], optimizer.state[part]["exp_avg_sq"])
    last = optimizer.state[weights[1]]["exp_avg_sq"] / (1 - 0.95**5)
    torch.testing.assert_close(counts[1], 1 / (last.sqrt() + 1e-8))


def test_what_was_never_seen_before_counts_by_what_adamw_would_move_it(tmp_path: Path) -> None:
    moments = SecondMoments(beta2=0.999, max_norm=99.0, squares=[torch.tensor([1.0, 0.0])], steps=[5000.0])
    (counts,) = moments.take([torch.tensor([0.01, 0.01])])
    assert counts is not None
    bias = 1 - 0.999**5001
    assert counts[0] == pytest.approx((bias / 0.999) ** 0.5, rel=1e-3)
    assert counts[1] == pytest.approx((bias / 0.001) ** 0.5 / 0.01, rel=1e-3), "and not 1 / 1e-8"


def make_trained(config: TrainingConfig, *, num_steps: int) -> tuple[OneProcess, dict[str, Any]]:
    """Return a process after so many updates, and what a checkpoint's state.pt of the same training would hold."""
    process = OneProcess(config)
    for number in range(1, num_steps + 1):
        process.apply(process.gradient(number, order_as_one_rank).by_order[0], number)
    return process, {"optimizer": process._optimizer.state_dict(), "without_moments": []}


def test_second_moments_of_a_checkpoint_are_found_by_name_whatever_it_calls_them(tmp_path: Path) -> None:
    config = told(tmp_path)
    process, state = make_trained(config, num_steps=3)
    named = dict(reversed(process.weights.items()))
    found = read_second_moments(state, process.weights, named, beta2=0.999, max_norm=1.0)
    assert isinstance(found, SecondMoments)
    wanted = {name: process._optimizer.state[part] for name, part in process._named.items()}
    for name, squares, steps in zip(named, found.squares, found.steps, strict=True):
        assert torch.equal(squares, wanted[name]["exp_avg_sq"]), name
        assert steps == 3
    other = {name: part for name, part in named.items() if part.ndim > 1}
    told_why = read_second_moments(state, process.weights, other, beta2=0.999, max_norm=1.0)
    assert isinstance(told_why, str)
    assert told_why.startswith("its optimizer's state does not fit the model: the optimizer's groups have")
    plain = {**state, "optimizer": {**state["optimizer"], "state": {}}, "without_moments": list(named)}
    assert read_second_moments(plain, process.weights, named, beta2=0.9, max_norm=1.0) == (
        "its optimizer's state has no second moments"
    )


def measure(config: TrainingConfig, weights: Any, state: Any = None) -> NoiseScale:
    found = measure_noise_scale(config, weights, epoch=1, num_batches=5, state=state)
    assert found is not None
    return found


def test_adamw_has_the_noise_of_its_own_coordinates_and_sgd_that_of_the_gradient(tmp_path: Path) -> None:
    config = told(tmp_path, global_batch_size=4, micro_batch_size=2, max_grad_norm=1e9)
    process, state = make_trained(config, num_steps=3)
    plain = measure(dataclasses.replace(config, optimizer="sgd"), process.weights)
    assert (plain.second_moments, plain.coordinates) == (None, "of the gradient itself")

    def stretch(of: Callable[[str], float]) -> NoiseScale:
        names = sorted(process.weights, key=lambda name: process.weights[name].ndim < 2)
        kept = {
            place: {**state["optimizer"]["state"][place], "step": torch.tensor(1e6),
                    "exp_avg_sq": torch.full_like(process.weights[name], of(name))}
            for place, name in enumerate(names)
        }  # fmt: skip
        return measure(config, process.weights, {**state, "optimizer": {**state["optimizer"], "state": kept}})

    same = stretch(lambda _: 1e8)
    assert same.second_moments == "training"
    assert same.value == pytest.approx(plain.value, rel=1e-3), "coordinates that are all stretched alike"
    assert same.trace == pytest.approx(plain.trace / 1e4, rel=5e-3), "each batch takes a little of the memory"
    # All but one parameter is stretched away: its own noise is left, which its gradients tell by hand.
    name = next(iter(process.weights))
    alone, by_hand = stretch(lambda one: 1e4 if one == name else 1e30), []
    parts, num_parts = split_for_noise(config)
    other = OneProcess(parts)
    other.begin_at(process.weights)
    for first in range(1, 5 * num_parts + 1, num_parts):
        own = []
        for number in range(first, first + num_parts):
            step = other.gradient(number, order_as_one_rank).by_order[0][name]
            labels = sum(int((part.labels != IGNORED_LABEL).sum()) for part in other._make_micro_batches(number))
            if labels:
                own.append((labels, step.double()))
        total = sum(labels for labels, _ in own)
        mean = sum(part * (labels / total) for labels, part in own)
        square = sum(labels / total * float((part**2).sum()) for labels, part in own)
        by_hand.append(
            estimate_moments(BatchSquares(4, [labels for labels, _ in own], square / 1e2, float((mean**2).sum()) / 1e2))
        )
    assert alone.trace == pytest.approx(float(np.mean([one.trace for one in by_hand])), rel=5e-3)
    assert alone.squared_norm == pytest.approx(float(np.mean([one.squared_norm for one in by_hand])), rel=1e-2)
    assert alone.value != pytest.approx(plain.value, rel=0.05)


def test_without_a_state_the_memory_is_of_batches_there_and_says_why(tmp_path: Path) -> None:
    config = told(tmp_path, global_batch_size=4, micro_batch_size=2)
    process, state = make_trained(config, num_steps=2)
    base = measure(config, None)
    assert (base.second_moments, base.instead) == ("batches", None)
    missing = measure(config, process.weights)
    assert missing.second_moments == "batches"
    assert missing.instead == "no optimizer's state stands beside the checkpoint"
    assert missing.coordinates.endswith("batches there, since no optimizer's state stands beside the checkpoint")
    unfit = measure(config, process.weights, {"optimizer": {}})
    assert unfit.instead == "beside it stands no optimizer's state: KeyError: 'param_groups'"
    assert unfit.value == missing.value
    assert measure(config, process.weights, state).value != missing.value


def test_no_more_batches_are_taken_once_the_samples_needed_are_known(tmp_path: Path) -> None:
    random, mean = np.random.default_rng(5), np.full(10, 0.3)
    batches = [draw_quadratic(random, (4, 4, 4, 4), mean, 1.0) for _ in range(40)]
    known = [count for count in range(1, 41) if is_known(batches[:count], 16)]
    assert known
    assert known[0] > 8, "a noise scale of 11 at a batch of 16 is not known at once"
    assert known[-1] == 40
    for count, is_narrow in ((known[0], True), (known[0] - 1, False)):
        # Interval by hand: samples at a batch of 64 against 16.
        ratio = estimate_noise_ratio([estimate_moments(one) for one in batches[:count]])
        assert ratio.value is not None
        needed = [(one + 64) / (one + 16) for one in (ratio.low, ratio.value, ratio.high or 1e9)]
        assert ((needed[0] - needed[2]) / 2 <= 0.1 * needed[1]) == is_narrow
    assert not is_known(batches[:7], 10_000)


def test_what_a_batch_adds_to_memory_is_a_sum_and_squares_and_no_copies_of_all() -> None:
    num_parts, size = 50, 100
    gradient, other = ([torch.randn(size) for _ in range(num_parts)] for _ in range(2))
    moments = SecondMoments(0.9, 1.0, [torch.rand(size) for _ in range(num_parts)], [3.0] * num_parts)
    with HeldNumbers() as held:
        squares = add_squares(None, gradient, 4)
    assert num_parts * size <= held.most <= (num_parts + 2) * size
    with HeldNumbers() as held:
        add_squares(squares, other, 4)
        total = add_in_place(gradient, other)
    assert held.most <= 2 * size
    with HeldNumbers() as held:
        moments.weigh(total, squares)
    # What is remembered is new, and waits in the host's memory.
    assert held.most <= (num_parts + 8) * size
