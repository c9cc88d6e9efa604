"""The probe as one record, from what the ranks measured."""

import math
from typing import Any

import numpy as np
import pytest

from tasks.measuring.probe import AllReduce, Gradient, compute_expected_maximum, make_buckets, make_probe


def test_the_expected_maximum_of_normals_is_that_of_the_textbooks_and_of_a_simulation() -> None:
    assert compute_expected_maximum(1) == pytest.approx(0, abs=1e-9)
    assert compute_expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-6)
    assert compute_expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-6)
    drawn = np.random.default_rng(1).normal(size=(100_000, 64)).max(axis=1)
    assert compute_expected_maximum(64) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / math.sqrt(len(drawn)))


def test_a_bucket_ends_with_the_parameter_that_fills_it() -> None:
    parts = [Gradient(num_bytes=size, ready=index / 4) for index, size in enumerate((3, 3, 10, 1, 2))]
    assert [bucket.num_bytes for bucket in make_buckets(parts, 5)] == [6, 10, 3]
    assert [bucket.ready for bucket in make_buckets(parts, 5)] == [0.25, 0.5, 1.0]


def _answer(*parts: Any) -> dict[str, Any]:
    """Return the answer with these seconds of forward, backward, optimizer and of what is fixed."""
    forward, backward, optimizer, fixed = (np.array(part, dtype=float) for part in parts)
    return {
        "num_micro_batches": forward.shape[2],
        "num_positions": np.full(forward.shape[::2], 8).tolist(),
        "forward_seconds": forward.tolist(),
        "backward_seconds": backward.tolist(),
        "optimizer_seconds": optimizer.tolist(),
        "fixed_seconds": fixed.tolist(),
        "step_seconds": ((forward + backward).sum(axis=2) + optimizer + fixed).tolist(),
        "gradients": [{"name": "a", "num_bytes": 8, "ready": 0.5}, {"name": "b", "num_bytes": 4, "ready": 1.0}],
    }


def test_a_probe_is_built_from_the_answers_of_the_ranks() -> None:
    # A step runs its longest micro-batch last. Two ranks: 1.5 times as slow, the update twice, every rank late in turn.
    alone = _answer([[[1, 3], [1, 3]]], [[[1, 3], [1, 3]]], [[1, 1]], [[0.5, 0.5]])
    slower = [[[1.5], [1.5]], [[4.5], [4.5]]]
    pair = _answer(slower, slower, [[2, 2], [2, 2]], [[0, 1], [1, 0]])
    probe = make_probe(
        {1: alone, 2: pair},
        {2: {"points": [{"num_bytes": 64, "seconds": [0.1, 0.2]}]}},
        buckets=[{"num_bytes": 12, "ready": 1.0, "parameters": ["a", "b"]}],
        in_flight={"alone_seconds": [[1.0, 1.0], [1.0, 1.0]], "in_flight_seconds": [[1.2, 1.4], [1.2, 1.4]]},
        link_bytes_per_byte=10.0,
    )
    assert probe.forward_seconds == probe.backward_seconds == (2.0, 2.0)
    assert probe.micro_batches == (1.5, 0.5)
    assert probe.optimizer_seconds == (1.0, 1.0)
    assert probe.fixed_seconds == {1: (0.5, 0.5), 2: (0.5, 0.5)}
    assert probe.contention == {2: (1.5, 1.5)}
    assert probe.update_contention == {2: (2.0, 2.0)}
    assert probe.in_flight_slowdown == pytest.approx((1.2, 1.4))
    # In weak scaling the ranks' rows are others: half as long again here, which is no contention.
    longer = make_probe(
        {1: alone, 2: {**pair, "num_positions": [[12], [12]]}},
        {2: {"points": [{"num_bytes": 64, "seconds": [0.1, 0.2]}]}},
        buckets=[{"num_bytes": 12, "ready": 1.0, "parameters": ["a", "b"]}],
        in_flight={"alone_seconds": [], "in_flight_seconds": []},
    )
    assert longer.contention == {2: (1.0, 1.0)}
    assert longer.in_flight_slowdown == (1.0,)
    assert probe.gradients == (Gradient(num_bytes=80.0, ready=0.5), Gradient(num_bytes=40.0, ready=1.0))
    assert probe.buckets == (Gradient(num_bytes=120.0, ready=1.0),)
    assert probe.all_reduce == {2: (AllReduce(num_bytes=64, seconds=(0.1, 0.2)),)}
    # The latest is 0.5 s behind the mean in both steps; two repeats show but half the variance.
    assert probe.spread_seconds[2] == pytest.approx((0.5 * math.sqrt(2) / compute_expected_maximum(2),) * 2)


def test_micro_batches_that_differ_by_noise_only_are_taken_to_be_alike() -> None:
    random = np.random.default_rng(7)
    noisy = 1 + random.normal(0, 0.02, size=(1, 9, 8))
    alone = _answer(noisy, noisy, np.ones((1, 9)), np.zeros((1, 9)))
    probe = make_probe(
        {1: alone}, {2: {"points": [{"num_bytes": 1, "seconds": [1.0]}]}}, buckets=alone["gradients"]
    )  # fmt: skip
    assert max(probe.micro_batches) < 1.01


def test_a_hiccup_of_one_rank_is_no_spread() -> None:
    fixed = np.tile([[0.0, 0.2], [0.2, 0.0]], 5)
    seconds = np.ones((2, 10, 1))
    alone = _answer(np.ones((1, 10, 1)), np.ones((1, 10, 1)), np.ones((1, 10)), np.zeros((1, 10)))

    def spread(fixed_seconds: Any) -> float:
        pair = _answer(seconds, seconds, np.ones((2, 10)), fixed_seconds)
        sweep = {"points": [{"num_bytes": 1, "seconds": [1.0]}]}
        return float(np.mean(make_probe({1: alone, 2: pair}, {2: sweep}, buckets=alone["gradients"]).spread_seconds[2]))

    steady = spread(fixed)
    assert steady == pytest.approx(0.1 * math.sqrt(10 / 9) / compute_expected_maximum(2))
    fixed[0, 0] += 30.0
    assert spread(fixed) == pytest.approx(steady, rel=0.1)
