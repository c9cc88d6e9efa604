"""What the stages know of strategies: what has to be exchanged, worked out by hand, and what is not available."""

from typing import Any, NamedTuple

import pytest

from tasks.params.choices import list_file_names, read_constant
from tasks.strategies import Work, find_profile, get_exchange_dtype, list_unavailable, zero1
from tasks.strategies import fsdp2 as sharded
from training.strategies import find_strategy


class Counted(NamedTuple):
    """What a rank counted of one kind."""

    number: int
    num_bytes: int


def _work(**changes: Any) -> Work:
    """Return one step of 3 micro-batches on 2 ranks: a root of 100 bytes, and 2 layers of 200."""
    asked: dict[str, Any] = {
        "world_size": 2, "num_steps": 1, "num_rounds": (3, 3), "gradient_bytes": 500,
        "exchange": {"unit_bytes": [100, 200, 200]},
    }  # fmt: skip
    return Work(**asked | changes)


RIGHT = {"all_gather": Counted(15, 1350), "reduce_scatter": Counted(3, 500), "all_reduce": Counted(1, 8)}


def test_layers_are_gathered_twice_per_micro_batch_and_the_root_once_and_all_are_reduced_once_per_step() -> None:
    expected = sharded.compute_expected_traffic(_work())
    assert set(expected) == set(RIGHT)
    for kind, counted in RIGHT.items():
        assert expected[kind].number == (counted.number, counted.number)
        assert expected[kind].num_bytes == (counted.num_bytes, counted.num_bytes)
    assert sharded.problem_with(RIGHT, _work()) is None
    assert sharded.told(RIGHT, _work()) == "15 all-gathers and 3 reduce-scatters of 3 units"


def test_layers_that_stay_gathered_are_gathered_once_and_giving_them_up_is_no_advice() -> None:
    kept = {"reshard_after_forward": False}
    expected = sharded.compute_expected_traffic(_work(options=kept))
    assert expected["all_gather"].number == (9, 9)
    assert expected["all_gather"].num_bytes == (750, 750)
    asked: dict[str, Any] = {"exchange": {}, "bytes_per_real_byte": 1.0, "can": ()}
    (knob,) = sharded.list_knobs({}, **asked)
    assert knob.overrides == {"options": kept}
    assert sharded.list_knobs(kept, **asked) == []


@pytest.mark.parametrize(
    ("traffic", "work", "says"),
    [
        ({"reduce_scatter": Counted(0, 0)}, {}, "0 reduce-scatters where 3 are needed: gradients were never reduced"),
        ({"reduce_scatter": Counted(2, 400)}, {}, "gradients were not all reduced in every step"),
        ({"reduce_scatter": Counted(9, 1500)}, {}, "9 reduce-scatters per step where 1 of each of the 3 units"),
        ({}, {"gradient_bytes": 600}, "the units hold 500 bytes, the gradient of all parameters has 600"),
        ({}, {"gradient_bytes": 400}, "the units hold 500 bytes, the gradient of all parameters has 400"),
        ({}, {"world_size": 1}, "one rank, yet 19 exchanges of weights and gradients"),
    ],
)  # fmt: skip
def test_a_sharded_step_that_reduces_otherwise_is_told(
    traffic: dict[str, Counted], work: dict[str, Any], says: str
) -> None:
    problem = sharded.problem_with(RIGHT | traffic, _work(**work))
    assert problem is not None
    assert says in problem


@pytest.mark.parametrize("strategy", list_file_names("tasks/strategies"))
def test_what_a_strategy_has_no_model_of_is_not_predicted_and_nothing_else_is_left_out(strategy: str) -> None:
    profile = find_profile(strategy)
    assert profile is not None
    has_model = strategy in list_file_names("tasks/strategies/communication")
    assert (profile.explain_no_prediction({}, is_exact=False) is None) == has_model


def test_what_a_strategy_has_not_is_said_and_never_left_out_in_silence() -> None:
    assert list_unavailable("2gpu", "ddp", {}, is_exact=False) == []
    assert list_unavailable("2gpu", "ddp", {"early_tied_head": True}, is_exact=False) == [
        "2gpu: A prediction: not available for early_tied_head, with which a gradient is exchanged in two parts."
    ]
    all_three = ["A waterfall", "A prediction", "Advice on options"]
    for strategy, is_exact, missing in (("ddp", True, all_three), ("fsdp2", False, all_three[:2])):
        found = list_unavailable("2gpu", strategy, {}, is_exact=is_exact)
        assert [sentence.split(": ")[1] for sentence in found] == missing
        assert all(f"not available for the strategy {strategy}" in sentence for sentence in found)
    assert find_profile("unheard_of") is None
    assert get_exchange_dtype("unheard_of", {}) == "none"
    (sentence,) = list_unavailable("2gpu", "unheard_of", {}, is_exact=False)
    assert sentence.startswith(
        "2gpu: Waterfall, prediction and advice on options: not available for the strategy unhea"
    )


def _work_of_shares(**changes: Any) -> Work:
    """Return two steps on 2 ranks: one bucket of 500 bytes, of whose weights each rank updates half."""
    exchange = {"bucket_bytes": [500], "share_bytes": [256, 512], "num_parameters": 2}
    asked: dict[str, Any] = {
        "world_size": 2, "num_steps": 2, "num_rounds": (6, 6), "gradient_bytes": 500, "exchange": exchange
    }  # fmt: skip
    return Work(**asked | changes)


SHARED = {"all_reduce": Counted(2, 1000), "broadcast": Counted(4, 1536)}


def test_every_share_of_the_weights_is_sent_once_per_step_beside_the_exchange_of_ddp() -> None:
    expected = zero1.compute_expected_traffic(_work_of_shares())
    for kind, counted in SHARED.items():
        assert expected[kind].number == (counted.number, counted.number)
        assert expected[kind].num_bytes == (counted.num_bytes, counted.num_bytes)
    assert zero1.problem_with(SHARED, _work_of_shares()) is None
    assert zero1.told(SHARED, _work_of_shares()).endswith("; 2 shares of the updated weights sent")


@pytest.mark.parametrize(
    ("traffic", "work", "says"),
    [
        ({"broadcast": Counted(0, 0)}, {}, "0 shares of the weights were sent per step where each of the 2 ranks"),
        ({"broadcast": Counted(2, 768)}, {}, "1 shares of the weights were sent per step"),
        ({"broadcast": Counted(4, 1024)}, {}, "1,024 bytes of weights were sent, the shares hold 1,536"),
        ({"all_reduce": Counted(6, 3000)}, {}, "3 all-reduces per step where 1 exchange of the 1 bucket is needed"),
        ({}, {"gradient_bytes": 800}, "the buckets hold 500 bytes, the gradient of all parameters has 800"),
        (
            {}, {"exchange": {"bucket_bytes": [500], "share_bytes": [256, 512]}},
            "the shares hold 768 bytes, all parameters 500",
        ),
    ],
)  # fmt: skip
def test_a_step_that_shares_its_update_otherwise_is_told(
    traffic: dict[str, Counted], work: dict[str, Any], says: str
) -> None:
    problem = zero1.problem_with(SHARED | traffic, _work_of_shares(**work))
    assert problem is not None
    assert says in problem


def test_zero1_has_the_options_of_ddp() -> None:
    found = [read_constant(f"training/strategies/{name}.py", "OPTIONS") for name in ("ddp", "zero1")]
    assert found[0] == found[1]
    assert found[0]


def test_what_is_read_of_a_strategy_without_importing_it_is_what_it_has() -> None:
    names = list_file_names("training/strategies")
    assert len(names) > 3
    for name in names:
        assert read_constant(f"training/strategies/{name}.py", "OPTIONS") == find_strategy(name).OPTIONS, name
