"""Local SGD and DiLoCo: the ranks' weights are averaged every few steps and at the end of a segment, else nothing."""

from collections.abc import Mapping
from typing import Any

from tasks.process import wording
from tasks.strategies import Bounds, Copies, Exchanged, Expected, OtherTraining, Work
from tasks.strategies.single import count_shares as count_shares
from tasks.strategies.single import get_exchange_dtype as get_exchange_dtype
from tasks.strategies.single import list_knobs as list_knobs
from tasks.strategies.single import split_waits as split_waits
from tasks.strategies.single import tell_timers as tell_timers

_ALL_REDUCE = "all_reduce"
_EVERY_STEPS = 8
"""As OPTIONS in training/strategies/local_sgd.py has it; a test holds the two together."""


def require(options: Mapping[str, Any], *, is_exact: bool) -> None:
    """Raise ValueError for a number of steps that is none, a momentum that would grow, and exact mode."""
    if is_exact:
        raise ValueError("strategy: got local_sgd with train.exact; allowed: exact: false, or strategy ddp")
    if (every := options.get("every_steps", _EVERY_STEPS)) != int(every):
        raise ValueError(f"options.every_steps: got {every}; allowed: a whole number from 1 on")
    if (momentum := options.get("outer_momentum", 0)) >= 1:
        raise ValueError(f"options.outer_momentum: got {momentum}; allowed: 0, or a number below 1")


def explain_unfit(options: Mapping[str, Any], *, world_size: int, unit: str) -> str | None:
    """Return that one rank has nobody to meet."""
    if world_size == 1:
        return "world_size: got 1 with strategy local_sgd; allowed: 2 or more, or strategy single"
    return None


def find_other_training(options: Mapping[str, Any]) -> OtherTraining:
    """Return after how many steps the ranks meet."""
    every = int(options.get("every_steps", _EVERY_STEPS))
    return OtherTraining(f"exchanges {_tell_when(every)}", every)


def _tell_when(every: int) -> str:
    return f"every {every} steps" if every > 1 else "after every step of its ranks' own"


def count_copies(world_size: int, options: Mapping[str, Any]) -> Copies:
    """Return one copy of the weights per rank; of the moments each rank has its own, which are one state together."""
    return Copies(world_size, 1)


def compute_expected_traffic(work: Work) -> dict[str, Expected]:
    """Return all weights once in every meeting; how many of those are among some steps depends on which these are."""
    if work.world_size == 1:
        return {}
    every, parcels = find_other_training(work.options).every_steps, _list_parcel_bytes(work)
    # One more than their share of all where the last of them ends a segment.
    least, most = work.num_steps // every, 1 - (1 - work.num_steps) // every
    return {
        _ALL_REDUCE: Expected(
            Bounds(len(parcels) * least, len(parcels) * most), Bounds(sum(parcels) * least, sum(parcels) * most)
        )
    }


def _list_parcel_bytes(work: Work) -> list[int]:
    parcels: list[int] = list(work.exchange.get("parcel_bytes", []))
    return parcels


def find_problem(traffic: Mapping[str, Exchanged], work: Work) -> str | None:
    """Return how the exchanges of a whole segment are not one of all weights every few steps, and one at its end."""
    number = sum(kind.number for kind in traffic.values())
    if work.world_size == 1:
        return f"one rank, yet {number} exchanges of weights" if number else None
    every, parcels = find_other_training(work.options).every_steps, _list_parcel_bytes(work)
    if sum(parcels) != work.gradient_bytes:
        return f"the exchanges of a meeting hold {sum(parcels):,} bytes, all weights have {work.gradient_bytes:,}"
    meetings = -(-work.num_steps // every)
    if number != meetings * len(parcels):
        return (
            f"{number} exchanges of weights in {wording.format_plural(work.num_steps, 'step')} where "
            f"{meetings * len(parcels)} are needed: {len(parcels)} {_tell_when(every)}, and at the segment's end"
        )
    num_bytes = sum(kind.num_bytes for kind in traffic.values())
    if num_bytes != meetings * sum(parcels):
        return f"{num_bytes:,} bytes of weights were exchanged, {meetings * sum(parcels):,} are needed"
    return None


def describe_traffic(traffic: Mapping[str, Exchanged], work: Work) -> str:
    """Return the exchanges per step, and when they are."""
    number = traffic[_ALL_REDUCE].number if _ALL_REDUCE in traffic else 0
    every = find_other_training(work.options).every_steps
    return (
        f"{wording.format_three_digits(number / work.num_steps)} exchanges of weights, {_tell_when(every)} and "
        "at the end of a segment, and none of gradients"
    )


def list_figures(work: Work) -> dict[str, float]:
    """Return what a meeting exchanges."""
    return {"parcels": len(_list_parcel_bytes(work)), "parcel_bytes": sum(_list_parcel_bytes(work))}


def explain_no_waterfall(*, is_exact: bool) -> str | None:
    """Return that a step is not like the next."""
    return "the strategy local_sgd, most of whose steps exchange nothing"


def explain_no_prediction(options: Mapping[str, Any], *, is_exact: bool) -> str | None:
    """Return the same."""
    return explain_no_waterfall(is_exact=is_exact)


def explain_no_knobs(*, is_exact: bool) -> str | None:
    """Return that no option leaves the training what it is."""
    return "the strategy local_sgd, whose options change what is trained"
