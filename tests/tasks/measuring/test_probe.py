"""The probe as one record, from what the ranks measured."""

import math
from typing import Any

import numpy as np
import pytest

from tasks.measuring.paired import PairedParts
from tasks.measuring.probe import Gradient, Swept, compute_expected_maximum, make_buckets, make_probe


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
    """Return one rank's answer with these seconds of forward, backward, optimizer and of what is fixed."""
    forward, backward, optimizer, fixed = (np.array(part, dtype=float).tolist() for part in parts)
    return {
        "forward_seconds": forward,
        "backward_seconds": backward,
        "optimizer_seconds": optimizer,
        "fixed_seconds": fixed,
        "gradients": [{"name": "a", "num_bytes": 8, "ready": 0.5}, {"name": "b", "num_bytes": 4, "ready": 1.0}],
    }


ALONE = _answer([[1, 3], [1, 3]], [[1, 3], [1, 3]], [1, 1], [0.5, 0.5])
"""A step of 9.5 s, whose longest micro-batch is the last."""
SWEEP = {"points": [{"num_bytes": 64, "seconds": [0.1, 0.2]}]}
BUCKETS = [{"num_bytes": 12, "ready": 1.0, "parameters": ["a", "b"]}]


def _pair(**changes: Any) -> PairedParts:
    """Return two ranks that cost each other nothing: a rank's half is half of 9.5 s but for the update and what is
    fixed, of which it has all.
    """
    figures = {
        "contention": (1.0,), "straggler_seconds": (2.0,), "wrapper_seconds": (0.0,), "beyond_share_seconds": (0.75,),
        "share": 0.5, **changes,
    }  # fmt: skip
    return PairedParts(**figures)


def test_a_probe_is_built_from_one_ranks_parts_and_what_several_cost_each_other() -> None:
    pair = _pair(contention=(1.2, 1.4), wrapper_seconds=(0.1, 0.3), beyond_share_seconds=(0.75, 0.95))
    probe = make_probe(
        ALONE,
        {"all_reduce": {2: SWEEP, 4: SWEEP}},
        strategy="ddp",
        buckets=BUCKETS,
        paired={2: pair},
        copy_seconds={1: (0.4,), 2: (0.3,)},
        in_flight={"alone_seconds": [[1.0, 1.0], [1.0, 1.0]], "in_flight_seconds": [[1.2, 1.4], [1.2, 1.4]]},
        link_bytes_per_byte=10.0,
    )
    assert probe.forward_seconds == probe.backward_seconds == (2.0, 2.0)
    assert probe.micro_batches == (1.5, 0.5)
    assert probe.optimizer_seconds == (1.0, 1.0)
    # Beyond half of 9.5 s: half an update, and half of what is fixed; 0.2 s more in the second turn.
    assert probe.fixed_seconds == {1: (0.5, 0.5), 2: pytest.approx((0.5, 0.7))}
    assert probe.contention == {2: (1.2, 1.4)}
    assert probe.wrapper_seconds == (0.1, 0.3)
    assert probe.copy_seconds == {1: (0.2,), 2: (0.3,)}
    assert probe.in_flight_slowdown == pytest.approx((1.2, 1.4))
    assert probe.gradients == (Gradient(num_bytes=80.0, ready=0.5), Gradient(num_bytes=40.0, ready=1.0))
    assert probe.buckets == (Gradient(num_bytes=120.0, ready=1.0),)
    assert probe.links["all_reduce"][2] == (Swept(num_bytes=64, seconds=(0.1, 0.2)),)
    assert (probe.measured_world_sizes, probe.link_only, probe.swept_world_sizes) == ([2], {4}, [2, 4])
    nothing = {"alone_seconds": [], "in_flight_seconds": []}
    assert make_probe(
        ALONE, {"all_reduce": {2: SWEEP}}, strategy="ddp", buckets=BUCKETS, paired={2: pair}, in_flight=nothing
    ).in_flight_slowdown == (1.0,)


def test_that_a_rank_has_more_work_than_another_is_no_spread() -> None:
    # The longer micro-batch is 6 s, the mean one 4 s: that rank is 2 s behind an even share by its work alone.
    def spread(**changes: Any) -> Any:
        probe = make_probe(
            ALONE, {"all_reduce": {2: SWEEP}}, strategy="ddp", buckets=BUCKETS, paired={2: _pair(**changes)}
        )
        return probe.spread_seconds[2]

    assert spread(straggler_seconds=(2.0,)) == pytest.approx((0.0,))
    # Half a second more; a rank has one micro-batch.
    assert spread(straggler_seconds=(2.5, 2.7)) == pytest.approx(
        (0.5 / compute_expected_maximum(2), 0.7 / compute_expected_maximum(2))
    )
    # Contention makes the difference longer as well.
    assert spread(straggler_seconds=(2.4,), contention=(1.2,)) == pytest.approx((0.0,))


def test_one_ranks_parts_are_as_long_together_as_its_step_in_the_blocks() -> None:
    # 19 s where the parts add up to 9.5.
    probe = make_probe(
        ALONE,
        {"all_reduce": {2: SWEEP}},
        strategy="ddp",
        buckets=BUCKETS,
        paired={2: _pair()},
        baseline_seconds=(18.0, 19.0, 25.0),
    )
    assert probe.forward_seconds == pytest.approx((4.0, 4.0))
    assert probe.optimizer_seconds == pytest.approx((2.0, 2.0))
    assert probe.fixed_seconds[1] == pytest.approx((1.0, 1.0))
    # Parts that are longer one by one than in a step leave nothing that is fixed.
    longer = _answer([[1, 3]], [[1, 3]], [2], [-1])
    probe = make_probe(
        longer,
        {"all_reduce": {2: SWEEP}},
        strategy="ddp",
        buckets=BUCKETS,
        paired={2: _pair()},
        baseline_seconds=(9.0,),
    )
    assert 2 * (probe.forward_seconds[0] + probe.backward_seconds[0]) + probe.optimizer_seconds[0] == pytest.approx(9.0)


def test_micro_batches_that_differ_by_noise_only_are_taken_to_be_alike() -> None:
    random = np.random.default_rng(7)
    noisy = 1 + random.normal(0, 0.02, size=(9, 8))
    alone = _answer(noisy, noisy, np.ones(9), np.zeros(9))
    probe = make_probe(alone, {"all_reduce": {2: SWEEP}}, strategy="ddp", buckets=BUCKETS, paired={2: _pair()})
    assert max(probe.micro_batches) < 1.01
