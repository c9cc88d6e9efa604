"""The models of a step that are not ddp's, against arithmetic by hand, on a link of so many seconds per byte."""

from typing import Any

import numpy as np
import pytest

from tasks.measuring.prediction import predict
from tasks.measuring.probe import Probe, Swept
from tasks.params.choices import list_file_names
from tasks.strategies import pipeline as pipeline_profile
from tasks.strategies.communication import SpreadStep, find_communication, fsdp2, pipeline, zero1

_ONE = np.ones(1)
PER_BYTE = {"all_gather": 1.0, "reduce_scatter": 10.0, "all_reduce": 100.0, "broadcast": 0.5, "send": 0.125}
"""Kind of exchange -> seconds of each byte, however many ranks there are."""


def _step(world_size: int, num_micro_batches: int, *, link: float = 1.0, **changes: Any) -> SpreadStep:
    """Return micro-batches of 1 s forward and 2 s backward, and an update of 8 s on one rank."""
    asked: list[tuple[str, float, int]] = changes.pop("asked", [])

    def link_seconds(kind: str, num_bytes: float, num_ranks: int) -> np.ndarray:
        asked.append((kind, num_bytes, num_ranks))
        return np.full(1, 0.0 if num_ranks == 1 else link * PER_BYTE[kind] * num_bytes)

    given: dict[str, Any] = {
        "world_size": world_size, "works": (1.0,) * num_micro_batches, "forward": _ONE, "backward": 2 * _ONE,
        "optimizer": 8 * _ONE, "buckets": (), "wrapper_seconds": np.zeros(1), "slowdown": _ONE, "overlaps": False,
        "link_seconds": link_seconds,
    }  # fmt: skip
    return SpreadStep(**given | changes)


def _seconds(of: Any, step: SpreadStep) -> float:
    return float(of.compute_step_seconds(step)[0])


UNITS = {"unit_bytes": [1, 2, 2]}
"""A root and two layers."""
CUT = {
    "part_costs": [0, 1, 1, 1, 1, 0],
    "part_bytes": [4, 1, 1, 1, 1, 0],
    "row_bytes": 2,
    "most_rows": 4,
    "tied_bytes": [],
}
"""Four layers alike, of which the first stage has the embedding beside it."""


@pytest.mark.parametrize("strategy", list_file_names("tasks/strategies/communication"))
def test_what_a_model_asks_of_the_link_is_what_it_says_is_swept(strategy: str) -> None:
    asked: list[tuple[str, float, int]] = []
    exchange = {**UNITS, **CUT, "share_bytes": [6, 6], "largest_bytes": 4}
    found = find_communication(strategy)
    for options in ({}, {"replicas": 2, "zero1": True}):
        found.compute_step_seconds(_step(4, 2, asked=asked, options=options, exchange=exchange))
    assert {kind for kind, _, _ in asked} <= set(found.KINDS)


def test_shares_of_an_update_take_as_long_as_the_largest_and_are_sent_one_after_another() -> None:
    # 12 bytes on two ranks, 7 and 5: of four the largest is 7/6 of an even share, but no parameter is divided.
    exchange = {"share_bytes": [7, 5], "largest_bytes": 4}
    computing = 2 * 3.0
    assert _seconds(zero1, _step(2, 2, exchange=exchange)) == pytest.approx(computing + 8 * 7 / 12 + 0.5 * 12)
    assert _seconds(zero1, _step(4, 2, exchange=exchange)) == pytest.approx(computing + 8 * 4 / 12 + 0.5 * 12)


@pytest.mark.parametrize(("options", "again"), [({}, 4), ({"reshard_after_forward": False}, 0)])
def test_where_ranks_wait_for_every_exchange_a_sharded_step_is_their_sum(options: dict[str, Any], again: int) -> None:
    # Two micro-batches of 3 s; per micro-batch 5 bytes gathered, and the layers once more; 5 reduced once per step.
    step = _step(2, 2, options=options, exchange=UNITS)
    assert _seconds(fsdp2, step) == pytest.approx(2 * (3 + 5 + again) + 10 * 5 + 8 / 2)


def test_on_a_device_that_goes_on_computing_only_the_first_and_the_last_exchange_are_waited_for() -> None:
    slow, fast = (_step(2, 1, overlaps=True, exchange=UNITS, link=link) for link in (1.0, 0.01))
    # The root's 1 + 10 s, the first layer's gather and the last one's reduction: 2 + 20.
    waited = 1 + 10 + 2 + 20
    assert _seconds(fsdp2, fast) == pytest.approx(3 + 0.01 * waited + 8 / 2)
    # What is left, 2 + 4 + 20 s, is longer than the 3 s of computing beside it.
    assert _seconds(fsdp2, slow) == pytest.approx(waited + 26 + 8 / 2)


def test_replicas_gather_among_fewer_ranks_and_add_up_a_part_of_the_gradient() -> None:
    asked: list[tuple[str, float, int]] = []
    fsdp2.compute_step_seconds(_step(8, 1, asked=asked, options={"replicas": 2}, exchange=UNITS))
    assert {(kind, ranks) for kind, _, ranks in asked} == {("all_gather", 4), ("reduce_scatter", 4), ("all_reduce", 2)}
    assert sorted(size for kind, size, _ in asked if kind == "all_reduce") == [1 / 4, 2 / 4, 2 / 4]
    assert "multiple" in str(fsdp2.explain_unknown({"replicas": 2}, UNITS, world_size=5))
    assert fsdp2.explain_unknown({"replicas": 2}, UNITS, world_size=8) is None


@pytest.mark.parametrize(("schedule", "stages_per_rank"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
@pytest.mark.parametrize("num_micro_batches", [1, 4, 8])
def test_equal_stages_wait_as_long_as_theory_says(schedule: str, stages_per_rank: int, num_micro_batches: int) -> None:
    options, nothing = {"schedule": schedule}, np.zeros(1)
    step = _step(2, num_micro_batches, link=0.0, options=options, exchange=CUT, optimizer=nothing)
    idle = pipeline_profile.compute_least_idle_share(options, world_size=2, num_micro_batches=num_micro_batches)
    computed = num_micro_batches * 3 / 2
    assert _seconds(pipeline, step) == pytest.approx(computed / (1 - idle))
    assert pipeline.explain_unknown(options, CUT, world_size=4 // stages_per_rank) is None
    assert "the model has 4 layers" in str(pipeline.explain_unknown(options, CUT, world_size=8))


def test_the_slowest_stage_sets_the_pace_and_has_the_update_of_its_own_weights() -> None:
    # The head costs two layers: three layers, and one with the head.
    exchange = {**CUT, "part_costs": [0, 1, 1, 1, 1, 2], "part_bytes": [0, 1, 1, 1, 1, 4]}
    step = _step(2, 4, link=0.0, exchange=exchange)
    assert _seconds(pipeline, step) == pytest.approx(3 * (4 * 3 / 6 + 3 / 6) + 8 * 5 / 8)


def test_messages_are_waited_for_on_the_way_in_and_out_and_with_1f1b_once_per_round_trip() -> None:
    message = 0.125 * 2 * 4

    def seconds(schedule: str) -> float:
        step = _step(2, 6, options={"schedule": schedule}, exchange=CUT, optimizer=np.zeros(1))
        return _seconds(pipeline, step)

    passes = 3 * 7 / 2
    assert seconds("gpipe") == pytest.approx(passes + 2 * message)
    assert seconds("1f1b") == pytest.approx(passes + 2 * message + 4 * message)


def test_what_two_stages_have_is_exchanged_and_what_replicas_have_added_up() -> None:
    asked: list[tuple[str, float, int]] = []
    exchange = {**CUT, "tied_bytes": [4]}
    options = {"replicas": 2, "zero1": True}
    pipeline.compute_step_seconds(_step(4, 2, asked=asked, options=options, exchange=exchange))
    # The first stage has 4 bytes beside its two layers.
    assert ("send", 4, 4) in asked
    assert ("all_reduce", 6, 2) in asked
    assert ("broadcast", 3, 2) in asked


def test_one_rank_has_all_micro_batches_however_many_replicas_the_cells_have() -> None:
    sizes = (2**10, 2**20)
    swept = {kind: {4: tuple(Swept(num_bytes=size, seconds=(1e-15,)) for size in sizes)} for kind in pipeline.KINDS}
    probe = Probe(
        strategy="pipeline", forward_seconds=(1.0,), backward_seconds=(2.0,), optimizer_seconds=(0.0,),
        fixed_seconds={1: (0.0,)}, micro_batches=(1.0,) * 4, gradients=(), buckets=(), links=swept, contention={},
        options={"replicas": 2}, exchange=CUT,
    )  # fmt: skip
    # Two pipelines of two stages, each with two of the four micro-batches.
    assert predict(probe, [4], num_draws=1, seed=0)[4].value == pytest.approx(4 * 3 / (3 * 3 / 2))
    assert "From 5 replicas" not in str(probe.explain_unknown(8))
