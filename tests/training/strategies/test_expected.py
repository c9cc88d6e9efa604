"""What the stages know of strategies: what has to be exchanged, worked out by hand."""

from dataclasses import replace

import pytest

from training.strategies import Work, find_traits
from training.strategies.pipeline.expected import compute_least_idle_share

_UNITS, _SHARES = [100, 200, 200], {"bucket_bytes": [500], "share_bytes": [256, 512]}
"""A root and two layers, of 500 bytes together; one bucket of them, of whose weights each rank updates half."""
_MIXED = {"mixed": "bf16"}


def _work(exchange, *, size=500, world_size=2, options=None):
    """Return one step of 3 micro-batches, whose gradient has so many bytes."""
    return Work(
        world_size=world_size, options=options or {}, num_steps=1, num_rounds=(3, 3), gradient_bytes=size,
        exchange=exchange,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "work", "code", "numbers"),
    [
        (
            "fsdp2", _work({"unit_bytes": _UNITS}, size=600), "other_size",
            {"parts": "units", "held": 500, "needed": 600},
        ),
        *(
            ("fsdp2", _work({"unit_bytes": _UNITS, "gathered_bytes": had}, options=told), "other_bytes_gathered", {})
            for had, told in (
                ([100, 90, 104], _MIXED), ([60, 104, 104], _MIXED), ([100, 104], _MIXED), ([100, 104, 104], {}),
            )
        ),
        (
            "zero1", _work({**_SHARES, "num_parameters": 2}, size=800), "other_size",
            {"parts": "buckets", "held": 500, "needed": 800},
        ),
        ("zero1", _work(_SHARES), "other_size", {"parts": "shares", "held": 768, "needed": 500}),
        (
            "pipeline", _work({"layers": [[0, 1], [2, 2]]}, world_size=3), "stages_are_not_ranks",
            {"stages": 2, "ranks": 3},
        ),
        ("pipeline", _work({"layers": [[0, 1], [3, 3]]}), "layers_missing", {"layers": "0-1, 3"}),
    ],
)  # fmt: skip
def test_an_exchange_that_is_laid_out_otherwise_is_told(strategy, work, code, numbers):
    problem = find_traits(strategy).explain_wrong_layout(work)
    assert (problem.code, dict(problem.numbers) | numbers) == (code, problem.numbers)


def test_in_stage_3_what_is_whole_is_gathered_once_per_step_one_by_one_and_all_else_within_bounds():
    layout = {"share_bytes": [1300], "num_buckets": 1, "bucket_bytes": 2600}
    some = {"num_sharded": 3, "num_whole": 5, "largest_share_bytes": 400, "whole_share_bytes": 100}
    none = {"num_sharded": 0, "num_whole": 8, "largest_share_bytes": 0, "whole_share_bytes": 1300}
    work = replace(_work(layout | some, size=2600, options={"stage": 3}), num_steps=4, num_rounds=(4, 8))
    found, whole = (
        find_traits("deepspeed").compute_expected_traffic(one)["all_gather"]
        for one in (work, replace(work, exchange=layout | none))
    )
    assert found.number == (4 + 4 * 5, 8 * 2 * 3 + 4 * 5)
    assert found.num_bytes == (4 * (1200 - 400) + 4 * 100, 8 * 2 * 1200 + 4 * 100)
    assert (whole.number, whole.num_bytes) == ((32, 32), (5200, 5200))


def test_what_stages_wait_is_told_beside_what_theory_says():
    for options, least in (({}, 3 / 12), ({"schedule": "interleaved"}, 1.5 / 10.5), ({"replicas": 2}, 1 / 10)):
        assert compute_least_idle_share(options, world_size=4, num_micro_batches=9) == pytest.approx(least)
    pipeline = find_traits("pipeline")
    timers = [{"pass_seconds": 1.0, "own_seconds": own, "num_micro_batches": 9} for own in (0.5, 0.6, 0.7, 0.8)]
    said = pipeline.explain_timers(timers, {}, world_size=4)
    assert [share in said for share in ("35 %", "25 %")] == [True, True]
    waits, _ = pipeline.split_waits(timers, {}, world_size=4)
    assert waits == pytest.approx(0.35)
    assert pipeline.split_waits([{}] * 4, {}, world_size=4) is None
