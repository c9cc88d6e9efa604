"""Trainings whose samples to a target are counted: they are the product's own, and scores follow by hand."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.efficiency.noise import measure_noise
from benchmarks.efficiency.questions import Trial
from benchmarks.efficiency.recipe import Curve, NoisePoint, Recipe, append_curve, read_curves, select_target
from benchmarks.efficiency.score import Found, make_row, predict, predict_by_steps, summarise
from benchmarks.efficiency.trainee import Trainee, apply_recipe
from tasks.equivalence.reference.update import OneProcess, order_as_one_rank
from tasks.measuring.noise_scale import measure_noise_scale
from tasks.records.measurement import Estimate
from tasks.records.noise_scale import NoiseScale
from tests.tiny import make_config, make_tiny_workload
from training.config import TrainingConfig, read_config
from training.process.files import write_json

BASE = Recipe(workload="w", samples=45)


@pytest.fixture
def config(tmp_path: Path) -> TrainingConfig:
    model, (rows, _) = make_tiny_workload("causal_lm", tmp_path)
    told = make_config(
        tmp_path / "work", model, [rows], global_batch_size=8, micro_batch_size=2, warmup_steps=2, learning_rate=1e-2
    )
    write_json(tmp_path / "config.json", told)
    return read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    "recipe",
    [
        BASE,
        dataclasses.replace(BASE, factor=2, growth=1.5, seed=3, schedule="run"),
        dataclasses.replace(BASE, memory="samples", factor=2, schedule="segment", warmup="steps"),
    ],
)
def test_a_recipe_trains_as_one_process_of_the_second_computation_does(config: TrainingConfig, recipe: Recipe) -> None:
    trainee = Trainee(config, recipe)
    found = [trainee.step(step) for step in trainee.list_steps()]
    told = dataclasses.replace(
        apply_recipe(config, recipe), schedule="constant" if recipe.schedule == "constant" else config.schedule
    )
    other, wanted = OneProcess(told), []
    for number in range(1, other.num_steps + 1):
        gradient = other.gradient(number, order_as_one_rank)
        other.apply(gradient.by_order[0], number)
        wanted.append(gradient.loss)
    assert len(found) == len(wanted) == -(-45 // (8 * recipe.factor))
    assert found == pytest.approx(wanted, rel=1e-4)
    assert len(set(found)) == len(found)


def test_a_larger_batch_warms_up_as_many_samples_and_may_remember_as_many(config: TrainingConfig) -> None:
    told = dataclasses.replace(config, warmup_steps=10, adam_beta1=0.9, adam_beta2=0.999, global_batch_size=8)
    usual = apply_recipe(told, dataclasses.replace(BASE, factor=4, growth=2.0))
    assert (usual.global_batch_size, usual.warmup_steps, usual.learning_rate) == (32, 3, 2e-2)
    assert (usual.adam_beta1, usual.adam_beta2) == (0.9, 0.999)
    other = apply_recipe(told, dataclasses.replace(BASE, factor=4, memory="samples", warmup="steps"))
    assert (other.adam_beta1, other.adam_beta2) == (pytest.approx(0.9**4), pytest.approx(0.999**4))
    assert other.warmup_steps == 10


def test_passes_over_a_range_come_before_the_next_range_or_in_turn(config: TrainingConfig) -> None:
    both = (config.segments[0], dataclasses.replace(config.segments[0], range="45-90"))
    told = dataclasses.replace(config, segments=both)

    def list_orders(passes: int) -> list[list[int]]:
        steps = Trainee(told, dataclasses.replace(BASE, samples=90, passes=passes)).list_steps()
        return [step.plan.order.tolist() for step in steps if step.number == 1]

    assert list_orders(0) == list_orders(1)
    in_turn, apart = list_orders(0), list_orders(2)
    assert in_turn[0] == apart[0]
    assert in_turn[1] != apart[1]


def test_noise_in_mid_training_is_the_product_s_and_changes_nothing(config: TrainingConfig) -> None:
    trainee, other = Trainee(config, BASE), Trainee(config, BASE)
    plain, scaled = measure_noise(trainee, num_batches=5)
    assert scaled is None, "no second moments before the first step"
    wanted = measure_noise_scale(
        dataclasses.replace(config, segments=(dataclasses.replace(config.segments[0], epoch=1_001),)),
        None, epoch=0, num_batches=5,
    )  # fmt: skip
    assert wanted is not None
    assert plain.trace == pytest.approx(wanted.trace, rel=1e-4)
    assert plain.squared_norm == pytest.approx(wanted.squared_norm, rel=1e-3)
    steps = list(trainee.list_steps())
    assert trainee.step(steps[0]) == other.step(steps[0])
    _, scaled = measure_noise(trainee, num_batches=5)
    assert scaled is not None
    assert trainee.step(steps[1]) == other.step(steps[1])
    # With second moments that are all 1 the optimizer's coordinates are the gradient's own.
    for part in trainee.parameters:
        state = trainee.optimizer.state[part]
        state["exp_avg_sq"].fill_(1 - trainee.config.adam_beta2 ** float(state["step"]))
    plain, scaled = measure_noise(trainee, num_batches=5)
    assert scaled is not None
    assert scaled.value == pytest.approx(plain.value, rel=1e-5)


def make_noise(samples: int, value: float, scaled: float | None) -> NoisePoint:
    def say(one: float) -> NoiseScale:
        return NoiseScale(
            range="0-9", epoch=0, value=one, low=one / 2, high=one * 2, squared_norm=1.0, trace=one, num_batches=16,
            batch_size=8, num_parts=4,
        )  # fmt: skip

    return NoisePoint(samples=samples, plain=say(value), scaled=None if scaled is None else say(scaled))


def test_a_prediction_weighs_the_noise_by_the_samples_between_two_points() -> None:
    points = [make_noise(0, 8, None), make_noise(10, 24, 8), make_noise(40, 24, 24)]
    # (8 + 16) / (8 + 8) = 1.5 and (24 + 16) / (24 + 8) = 1.25 at a batch of 16 against 8.
    plain = predict(points, which="plain", batch=16, own=8)
    assert plain == pytest.approx(0.25 * 1.375 + 0.75 * 1.25)
    scaled = predict(points, which="scaled", batch=16, own=8)
    assert scaled == pytest.approx(0.25 * 1.5 + 0.75 * 1.375)
    assert predict([make_noise(0, 8, None), make_noise(9, 8, None)], which="scaled", batch=16, own=8) is None


def test_steps_foretell_by_the_share_of_noise_in_their_gradients() -> None:
    # Noise of 24 / 8 in squares of 4: three quarters, so that twice the batch needs a quarter more.
    curve = Curve(
        recipe=BASE, points=[], noise=[make_noise(0, 999, None), make_noise(32, 24, None)], norms=[(8, 2.0)] * 4
    )
    assert predict_by_steps(curve, batch=16, own=8) == pytest.approx(1.25)
    quiet = dataclasses.replace(curve, norms=[(8, 1.0)] * 4)
    assert predict_by_steps(quiet, batch=16, own=8) == 1.0, "never more noise than all of it"


def test_a_curve_is_kept_and_says_when_it_came_to_a_loss(tmp_path: Path) -> None:
    curve = Curve(recipe=BASE, points=[(0, 5.0), (8, 4.0), (16, 3.0)], noise=[make_noise(0, 8, None)])
    append_curve(tmp_path / "a.jsonl", curve)
    assert read_curves(tmp_path / "a.jsonl") == [curve]
    assert curve.count_samples_until(3.5) == 12
    assert curve.count_samples_until(2.0) is None
    assert select_target([curve, dataclasses.replace(curve, points=[(16, 3.2)])]) == 3.2


def test_a_line_tells_the_error_of_what_the_product_predicts() -> None:
    near = 1.2
    trial = Trial(question="rule", baselines=(BASE,), recipes=(dataclasses.replace(BASE, factor=2, growth=1.41),))
    now = Estimate(value=1.2, low=1.1, high=1.6)
    found = Found(
        trial=trial, target_loss=3.0, ratios=[1.5], above=[1.6], predicted=now, by_steps=near, by_points=near,
        scaled=None,
    )  # fmt: skip
    row = make_row(found)
    assert row[5:8] == ["1", "3.0000", "1.50x"]
    assert row[-2:] == ["-20.0 %", "0.75"]
    told = summarise([found, dataclasses.replace(found, ratios=[1.25], above=[1.3])])
    assert "within 15.0 % of what was measured: 1 as predicted, 1 by steps" in told
    assert "0 scaled. In the predicted interval: 2." in told
    missed = dataclasses.replace(found, ratios=[None], above=[3.0])
    assert make_row(missed)[7] == "above 3.00x"
    assert make_row(missed)[-2] == "below -60.0 %"
