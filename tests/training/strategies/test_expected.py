"""What the stages know of strategies: what has to be exchanged, worked out by hand."""

from dataclasses import replace

import pytest

from training.strategies import Work
from training.strategies.deepspeed.expected import DeepSpeed
from training.strategies.fsdp2.expected import Fsdp2
from training.strategies.pipeline.expected import Pipeline, compute_least_idle_share
from training.strategies.zero1.expected import Zero1

deepspeed, sharded, pipeline, zero1 = DeepSpeed(), Fsdp2(), Pipeline(), Zero1()


def _work(**changes):
    """Return one step of 3 micro-batches on 2 ranks: a root of 100 bytes, and 2 layers of 200."""
    asked = {
        "world_size": 2, "num_steps": 1, "num_rounds": (3, 3), "gradient_bytes": 500,
        "exchange": {"unit_bytes": [100, 200, 200]},
    }  # fmt: skip
    return Work(**asked | changes)


def test_matrices_that_are_not_gathered_in_as_many_bytes_as_asked_for_are_told():
    mixed = {"mixed": "bf16"}
    for gathered, options in (
        ([100, 90, 104], mixed),
        ([60, 104, 104], mixed),
        ([100, 104], mixed),
        ([100, 104, 104], {}),
    ):
        wrong = _work(options=options, exchange={"unit_bytes": [100, 200, 200], "gathered_bytes": gathered})
        found = sharded.explain_wrong_layout(wrong)
        assert (found and found.code) == "other_bytes_gathered"


def _work_of_shares(**changes):
    """Return two steps on 2 ranks: one bucket of 500 bytes, of whose weights each rank updates half."""
    exchange = {"bucket_bytes": [500], "share_bytes": [256, 512], "num_parameters": 2}
    asked = {
        "world_size": 2, "num_steps": 2, "num_rounds": (6, 6), "gradient_bytes": 500, "exchange": exchange
    }  # fmt: skip
    return Work(**asked | changes)


def test_in_stage_3_what_is_whole_is_gathered_once_per_step_one_by_one_and_all_else_within_bounds():
    layout = {"share_bytes": [1300], "num_sharded": 3, "num_whole": 5, "largest_share_bytes": 400}
    work = _work(
        num_steps=4, num_rounds=(4, 8), options={"stage": 3}, gradient_bytes=2600,
        exchange={**layout, "whole_share_bytes": 100, "num_buckets": 1, "bucket_bytes": 2600},
    )  # fmt: skip
    found = deepspeed.compute_expected_traffic(work)["all_gather"]
    assert found.number == (4 + 4 * 5, 8 * 2 * 3 + 4 * 5)
    assert found.num_bytes == (4 * (1200 - 400) + 4 * 100, 8 * 2 * 1200 + 4 * 100)
    whole = {**layout, "num_sharded": 0, "num_whole": 8, "largest_share_bytes": 0, "whole_share_bytes": 1300}
    found = deepspeed.compute_expected_traffic(replace(work, exchange=whole))["all_gather"]
    assert (found.number, found.num_bytes) == ((32, 32), (5200, 5200))


def _work_of_stages(**changes):
    """Return two steps of 3 micro-batches on 2 stages: rows of 8 bytes, a tied embedding of 40, 100 bytes in all."""
    exchange = {
        "layers": [[0, 1], [2, 2]], "row_bytes": 8, "most_rows": 16, "tied_bytes": [40], "rank_bytes": [80, 60],
        "num_parameters": 7,
    }  # fmt: skip
    asked = {
        "world_size": 2, "num_steps": 2, "num_rounds": (6, 6), "gradient_bytes": 100, "exchange": exchange
    }  # fmt: skip
    return Work(**asked | changes)


@pytest.mark.parametrize(
    ("traits", "work", "code", "numbers"),
    [
        (sharded, _work(gradient_bytes=600), "other_size", {"parts": "units", "held": 500, "needed": 600}),
        (zero1, _work_of_shares(gradient_bytes=800), "other_size", {"parts": "buckets", "held": 500, "needed": 800}),
        (
            zero1, _work_of_shares(exchange={"bucket_bytes": [500], "share_bytes": [256, 512]}), "other_size",
            {"parts": "shares", "held": 768, "needed": 500},
        ),
        (pipeline, _work_of_stages(world_size=3), "stages_are_not_ranks", {"stages": 2, "ranks": 3}),
        (pipeline, _work_of_stages(exchange={"layers": [[0, 1], [3, 3]]}), "layers_missing", {"layers": "0-1, 3"}),
    ],
)  # fmt: skip
def test_an_exchange_that_is_laid_out_otherwise_is_told(traits, work, code, numbers):
    problem = traits.explain_wrong_layout(work)
    assert (problem.code, dict(problem.numbers) | numbers) == (code, problem.numbers)


def test_what_stages_wait_is_told_beside_what_theory_says():
    def least(number, **options):
        return compute_least_idle_share(options, world_size=4, num_micro_batches=number)

    assert least(9) == pytest.approx(3 / 12)
    assert least(9, schedule="interleaved") == pytest.approx(1.5 / 10.5)
    assert least(9, replicas=2) == pytest.approx(1 / 10)
    assert least(9, replicas=4) == 0.0
    timers = [{"pass_seconds": 1.0, "own_seconds": own, "num_micro_batches": 9} for own in (0.5, 0.6, 0.7, 0.8)]
    told = pipeline.explain_timers(timers, {}, world_size=4)
    assert "35 %" in told
    assert "25 %" in told
    waits, theory = pipeline.split_waits(timers, {}, world_size=4) or (0.0, "")
    assert waits == pytest.approx(0.35)
    assert "25 %" in theory
    assert pipeline.split_waits([{}] * 4, {}, world_size=4) is None
