"""What the stages know of strategies: what has to be exchanged, worked out by hand, and what is not available."""

from typing import Any, NamedTuple

import pytest

from tasks.params.choices import list_file_names
from tasks.strategies import Work, find_profile, get_exchange_dtype, list_unavailable
from tasks.strategies import fsdp2 as sharded


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
    for strategy, is_exact in (("ddp", True), ("fsdp2", False)):
        found = list_unavailable("2gpu", strategy, {}, is_exact=is_exact)
        assert [sentence.split(": ")[1] for sentence in found] == ["A waterfall", "A prediction", "Advice on options"]
        assert all(f"not available for the strategy {strategy}" in sentence for sentence in found)
    assert find_profile("unheard_of") is None
    assert get_exchange_dtype("unheard_of", {}) == "none"
    (sentence,) = list_unavailable("2gpu", "unheard_of", {}, is_exact=False)
    assert sentence.startswith(
        "2gpu: Waterfall, prediction and advice on options: not available for the strategy unhea"
    )
