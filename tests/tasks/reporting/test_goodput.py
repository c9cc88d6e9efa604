"""Goodput, against arithmetic by hand."""

import math
from typing import Any

import pytest

from tasks.records.estimate import Estimate
from tasks.records.noise_scale import NoiseScale
from tasks.reporting import drawing
from tasks.reporting.document import make_document
from tasks.reporting.goodput import (
    Goodput,
    GoodputPoint,
    Span,
    compute_data,
    compute_data_factor,
    describe_noise,
    measure_progress,
    select_best,
)
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results


def noise(value: float | None, low: float = 0.0, high: float | None = None) -> NoiseScale:
    facts: dict[str, Any] = {"range": "0-8", "epoch": 1, "squared_norm": 1.0, "trace": 1.0}
    return NoiseScale(**facts, value=value, low=low, high=high, num_batches=16, batch_size=16, num_parts=4)


def point(world_size: int, batch: int, speedup: float) -> GoodputPoint:
    one = Estimate(value=1.0, low=1.0, high=1.0)
    found = Estimate(value=speedup, low=speedup - 0.1, high=speedup + 0.1)
    return GoodputPoint(
        world_size=world_size, global_batch_size=batch, throughput=one, is_measured=False, data=one, speedup=found
    )


def test_a_batch_at_the_noise_scale_needs_twice_the_samples_of_the_smallest() -> None:
    # McCandlish et al. 2018, equation 2.11: samples / fewest samples = 1 + batch / noise scale.
    assert compute_data_factor(100.0, 100, 0) == 2.0
    assert compute_data_factor(48.0, 64, 16) == pytest.approx((48 + 64) / (48 + 16))
    assert compute_data_factor(0.0, 64, 16) == 4.0, "without noise every step of a larger batch is as good as before"
    assert compute_data_factor(None, 64, 16) == 1.0


def test_segments_count_by_their_samples_and_noise_at_both_their_ends() -> None:
    start, middle, end = noise(16, 8, 32), noise(48, 16, None), noise(None, 16, None)
    found = compute_data([Span(0.25, start, middle), Span(0.75, middle, end)], 32, 16)
    assert found.value == pytest.approx(0.25 * (48 / 32 + 80 / 64) / 2 + 0.75 * (80 / 64 + 1) / 2)
    assert found.high == pytest.approx(0.25 * (40 / 24 + 48 / 32) / 2 + 0.75 * (48 / 32 + 48 / 32) / 2)
    assert found.low == pytest.approx(0.25 * (64 / 48 + 1) / 2 + 0.75)


def test_within_a_segment_the_noise_follows_the_loss() -> None:
    # At twice a batch of 16 a noise scale of 16 takes 1 + 16 / 32, one of 240 takes 1 + 16 / 256; half-way of the
    # logarithm between 32 and 256 are 90.5.
    begin, end = noise(16, 16, 16), noise(240, 240, 240)
    found = compute_data([Span(1.0, begin, end, (0.0, 0.5, 1.0, 1.0))], 32, 16)
    assert found.value == pytest.approx(1 + (0.5 + 16 / (32 * 256) ** 0.5 + 2 / 16) / 4)
    assert found.value < compute_data([Span(1.0, begin, end)], 32, 16).value, "most of it is as the end is"
    hidden = compute_data([Span(1.0, begin, noise(None), (0.0, 0.5, 1.0, 1.0))], 32, 16)
    assert hidden.value == pytest.approx(1 + 0.5 * (1 - 2.5 / 4)), "towards noise alone there is no logarithm"


def test_how_far_a_loss_has_fallen_is_told_from_its_logarithm_over_sixteen_parts() -> None:
    losses = [8.0] + [4.0] * 7 + [2.0] * 8
    assert measure_progress(losses) == pytest.approx([0.0] + [0.5] * 7 + [1.0] * 8)
    assert measure_progress([8.0, 4.0, 2.0]) == pytest.approx([0.0, 0.5, 1.0])
    # In parts of two steps, where the first one is 6.
    found = measure_progress([8.0, 4.0, *losses[1:], *losses[1:]])
    assert len(found) == 16
    assert found[0] == pytest.approx(math.log(8 / 6) / math.log(8 / 2))
    assert measure_progress([2.0, 2.0, 3.0]) == [], "it rose"
    assert measure_progress([2.0]) == []


def test_of_points_that_are_as_soon_the_one_with_the_fewest_ranks_and_the_smallest_batch_is_named() -> None:
    points = [point(1, 16, 1.0), point(4, 64, 2.5), point(4, 32, 2.52), point(8, 64, 2.54), point(2, 16, 1.9)]
    best = select_best(points)
    assert best is not None
    assert (best.world_size, best.global_batch_size) == (4, 32)
    assert select_best([]) is None


def test_the_chart_and_the_section_name_the_best_point(measured_results: Results) -> None:
    points = [point(1, 32, 1.1), point(2, 16, 1.6), point(2, 32, 1.9), point(2, 64, 1.7)]
    own = noise(40.0, 30.0, 60.0).model_copy(update={"second_moments": "training"})
    instead = own.model_copy(update={"second_moments": "batches", "instead": "it is gone"})
    goodput = Goodput(
        noise_scales=[noise(None, 8.0), own, instead], mean_noise_scale=40.0, own_batch_size=16,
        points=points, best=select_best(points),
    )  # fmt: skip
    results = measured_results.model_copy(update={"goodput": goodput})
    chart = drawing.find_charts()["goodput"]
    svg = drawing.draw_svg("goodput", chart, results)
    assert all(word in svg for word in ("1 rank", "2 ranks", "best", "samples per optimizer step"))
    assert "1.90x (1.80 to 2.00) at a batch of 32" in drawing.tell_figures(chart, results)
    said = render_markdown(make_document(results))
    assert "Predicted: 2 ranks at a batch of 32 give 1.00x the tokens per second" in said
    assert "2.50x below the gradient noise scale of 40.0 samples in AdamW's coordinates: twice the batch" in said
    assert "n/a (8.00 to no end)" in said
    assert "of the gradient itself" in said
    assert "in AdamW's coordinates, by the training's second moments" in said
    assert "in AdamW's coordinates, by second moments of a few batches there, since it is gone" in said
    sooner = "- **How much sooner is an equally good model there?** Predicted: 1.90x by 2 ranks at a batch of 32, for "
    assert sooner in said
    assert "no cell with that batch was trained, so take it for the most that it may be." in said
    own = goodput.model_copy(update={"best": point(4, 16, 1.9)})
    said = render_markdown(make_document(results.model_copy(update={"goodput": own})))
    assert "Predicted: 1.90x by 4 ranks at a batch of 16, which is the comparison's own." in said


@pytest.mark.parametrize(
    ("mean", "told"),
    [
        (
            64.0,
            "Your batch of 16 is 4.00x below the gradient noise scale of 64.0 samples: twice the batch costs 20.0 %",
        ),
        (4.0, "Your batch of 16 is 4.00x above the gradient noise scale of 4.00 samples: twice the batch costs 80.0 %"),
        (0.0, "Your batch of 16 is far above the gradient noise scale of 0 samples: twice the batch costs 100.0 %"),
        (None, "Noise hides the gradient even in batches far larger than 16"),
    ],
)
def test_the_batch_is_told_against_the_noise_with_what_growing_it_costs(mean: float | None, told: str) -> None:
    goodput = Goodput(noise_scales=[], mean_noise_scale=mean, own_batch_size=16)
    assert describe_noise(goodput, most_ranks=2).startswith(told)


def test_a_batch_that_grows_with_many_ranks_is_told_with_its_cost() -> None:
    goodput = Goodput(noise_scales=[], mean_noise_scale=240.0, own_batch_size=16)
    assert describe_noise(goodput, most_ranks=8).endswith(
        "twice the batch costs 6.2 % more tokens for an equally good model, 8 times the batch, so that it grows with "
        "the ranks, 43.8 %."
    )
    assert describe_noise(goodput, most_ranks=2).endswith("for an equally good model.")
