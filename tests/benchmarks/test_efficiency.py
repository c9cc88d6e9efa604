"""Trainings whose samples to a target are counted: they are the product's own, and scores follow by hand."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.efficiency.noise import measure_noise
from benchmarks.efficiency.questions import Trial, list_trials
from benchmarks.efficiency.recipe import Curve, NoisePoint, Recipe, append_curve, read_curves, select_target
from benchmarks.efficiency.score import Found, list_found, list_spans, make_row, summarise
from benchmarks.efficiency.trainee import Trainee, apply_recipe
from tasks.equivalence.reference.update import OneProcess, order_as_one_rank
from tasks.measuring.noise_scale import measure_noise_scale
from tasks.records.measurement import Estimate
from tasks.records.noise_scale import NoiseScale
from tasks.reporting.goodput import compute_data
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
    steps = list(trainee.list_steps())
    for step in steps[:2]:
        assert trainee.step(step) == other.step(step)
    plain, scaled = measure_noise(trainee, num_batches=5)
    parts = dict(zip((name for name, _ in trainee.model.named_parameters()), trainee.parameters, strict=True))
    state = {"optimizer": trainee.optimizer.state_dict(), "without_moments": []}
    # The pass whose rows the benchmark takes, which the number of samples decides.
    pass_of_rows = dataclasses.replace(config.segments[0], epoch=1_001 + trainee.num_samples)
    told = dataclasses.replace(config, segments=(pass_of_rows,))
    wanted = measure_noise_scale(told, parts, epoch=0, num_batches=5, state=state)
    assert wanted is not None
    assert scaled is not None
    assert scaled.second_moments == wanted.second_moments == "training"
    assert scaled.trace == pytest.approx(wanted.trace, rel=1e-3)
    assert scaled.squared_norm == pytest.approx(wanted.squared_norm, rel=1e-2)
    of_gradient = measure_noise_scale(dataclasses.replace(told, optimizer="sgd"), parts, epoch=0, num_batches=5)
    assert of_gradient is not None
    assert plain.trace == pytest.approx(of_gradient.trace, rel=1e-4)
    assert plain.squared_norm == pytest.approx(of_gradient.squared_norm, rel=1e-3)
    assert trainee.step(steps[2]) == other.step(steps[2])


def test_before_the_first_step_the_memory_is_of_batches_there(config: TrainingConfig) -> None:
    _, scaled = measure_noise(Trainee(config, BASE), num_batches=4)
    assert scaled is not None
    assert scaled.second_moments == "batches"
    plain, scaled = measure_noise(Trainee(dataclasses.replace(config, optimizer="sgd"), BASE), num_batches=4)
    assert (plain.second_moments, scaled) == (None, None)


def make_noise(samples: int, value: float, scaled: float | None) -> NoisePoint:
    def say(one: float) -> NoiseScale:
        return NoiseScale(
            range="0-9", epoch=0, value=one, low=one / 2, high=one * 2, squared_norm=1.0, trace=one, num_batches=16,
            batch_size=8, num_parts=4,
        )  # fmt: skip

    return NoisePoint(samples=samples, plain=say(value), scaled=None if scaled is None else say(scaled))


def test_points_are_weighed_by_the_samples_between_them_and_the_first_two_by_the_loss() -> None:
    points = [(one, make_noise(one, value, None).plain) for one, value in ((0, 8), (16, 24), (64, 40))]
    # (8 + 16) / (8 + 8) = 1.5, (24 + 16) / (24 + 8) = 1.25 and (40 + 16) / (40 + 8) = 1.167 at a batch of 16 against 8.
    spans = list_spans(points, [8] * 8, [4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    first = 1 + (0.5 + 0.25) / 2
    assert compute_data(spans, 16, 8).value == pytest.approx(0.25 * first + 0.75 * (1.25 + 56 / 48) / 2)
    slow = list_spans(points, [8] * 8, [4.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert slow[0].progress == [], "the loss did not fall until the second point"


def test_a_baseline_alone_foretells_what_an_earlier_result_has_measured() -> None:
    own = dataclasses.replace(BASE, workload="abstracts", samples=2_048)
    curve = Curve(
        recipe=own, points=[(0, 5.0), (2_048, 4.0)], norms=[(512, 1.0)] * 4, losses=[8.0, 4.0, 2.0, 2.0],
        noise=[make_noise(0, 8, 16), make_noise(1024, 24, 30), make_noise(2_048, 24, 40)],
    )  # fmt: skip
    trial = next(list_trials("abstracts", seeds=[1]))
    before = {"target_loss": 2.5, "ratios": [1.5], "above": [1.6]}
    earlier = [{"question": "rule", "recipe": dataclasses.asdict(trial.recipes[0]), **before}]
    (found,) = list_found([curve], "abstracts", own=8, seeds=[1], measured=earlier)
    assert (found.recipe.factor, found.target_loss, found.ratios, found.above) == (8, 2.5, [1.5], [1.6])
    # 56 / 24 at the beginning, 56 / 48 at the end, above 1; the loss is half-way after the first of four steps.
    first, last = 56 / 24, 56 / 48
    assert found.evenly == pytest.approx(1 + (first + last) / 2)
    assert found.predicted.value == pytest.approx(1 + (first + (first * last) ** 0.5 + 2 * last) / 4)
    assert found.plain == pytest.approx(1 + (56 / 16 + 56 / 32) / 2)
    assert not list(list_found([curve], "abstracts", own=8, seeds=[1]))


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
        trial=trial, target_loss=3.0, ratios=[1.5], above=[1.6], predicted=now, evenly=near, by_points=near,
        plain=3.0,
    )  # fmt: skip
    row = make_row(found)
    assert row[5:8] == ["1", "3.0000", "1.50x"]
    assert row[-2:] == ["-20.0 %", "0.75"]
    told = summarise([found, dataclasses.replace(found, ratios=[1.25], above=[1.3])])
    assert "within 15.0 % of what was measured: 1 as predicted, 1 evenly" in told
    assert "0 plain. In the predicted interval: 2." in told
    missed = dataclasses.replace(found, ratios=[None], above=[3.0])
    assert make_row(missed)[7] == "above 3.00x"
    assert make_row(missed)[-2] == "below -60.0 %"
