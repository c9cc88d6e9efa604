"""Fully sharded: every unit's weights are gathered before it runs, forward and backward, its gradient reduced once.

The root's weights stay gathered from forward to backward, and a layer's where the option says so; the norm of the whole
gradient is one more sum.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.process import wording
from tasks.strategies import Bounds, Copies, Exchanged, Expected, Knob, Work

_ALL_GATHER, _REDUCE_SCATTER, _ALL_REDUCE = "all_gather", "reduce_scatter", "all_reduce"
_RESHARDS = "reshard_after_forward"
_BYTES_OF_A_NORM = 8
_MOST_PADDING = 0.05
"""Of the gradient: every rank has as many rows of a weight, of which the last may be padding."""


def require(options: Mapping[str, Any], *, is_exact: bool) -> None:
    """Raise ValueError in exact mode: a reduction adds in whatever order it likes."""
    if is_exact:
        raise ValueError("strategy: got fsdp2 with train.exact; allowed: exact: false, or strategy ddp")


def explain_unfit(options: Mapping[str, Any], *, world_size: int, unit: str) -> str | None:
    """Return None: it is for any."""
    return None


def get_exchange_dtype(options: Mapping[str, Any]) -> str:
    """Return none: fp32."""
    return "none"


def count_shares(world_size: int, options: Mapping[str, Any]) -> int:
    """Return one per rank."""
    return world_size


def count_copies(world_size: int, options: Mapping[str, Any]) -> Copies:
    """Return 1: all ranks hold one between them."""
    return Copies(1, 1)


def compute_expected_traffic(work: Work) -> dict[str, Expected]:
    """Return every unit gathered twice per micro-batch, or once, the root once, and all reduced once per step, with one
    norm."""
    root, *layers = _list_unit_bytes(work)
    num_bytes, times = root + sum(layers), 2 if work.options.get(_RESHARDS, True) else 1
    gathered = Expected(
        Bounds(*((1 + times * len(layers)) * rounds for rounds in work.num_rounds)),
        Bounds(*((root + times * sum(layers)) // work.world_size * rounds for rounds in work.num_rounds)),
    )
    number = (1 + len(layers)) * work.num_steps
    reduced = Expected(Bounds(number, number), Bounds(num_bytes * work.num_steps, num_bytes * work.num_steps))
    if work.world_size == 1:
        return {_ALL_GATHER: gathered}
    norm_bytes = _BYTES_OF_A_NORM * work.num_steps
    norm = Expected(Bounds(work.num_steps, work.num_steps), Bounds(norm_bytes, norm_bytes))
    return {_ALL_GATHER: gathered, _REDUCE_SCATTER: reduced, _ALL_REDUCE: norm}


def _list_unit_bytes(work: Work) -> list[int]:
    return list(work.exchange.get("unit_bytes", [])) or [work.gradient_bytes]


def problem_with(traffic: Mapping[str, Exchanged], work: Work) -> str | None:
    """Return that the units are not the model, or that they were reduced too often or too seldom."""
    if work.world_size == 1:
        number = sum(kind.number for kind in traffic.values())
        return f"one rank, yet {number} exchanges of weights and gradients" if number else None
    units, steps = _list_unit_bytes(work), work.num_steps
    if not work.gradient_bytes <= sum(units) <= work.gradient_bytes * (1 + _MOST_PADDING):
        return f"the units hold {sum(units):,} bytes, the gradient of all parameters has {work.gradient_bytes:,}"
    reduced = traffic[_REDUCE_SCATTER].number if _REDUCE_SCATTER in traffic else 0
    if reduced < len(units) * steps:
        why = "never reduced" if reduced == 0 else "not all reduced in every step"
        return f"{reduced} reduce-scatters where {len(units) * steps} are needed: gradients were {why}"
    if reduced > len(units) * steps:
        return (
            f"{reduced / steps:g} reduce-scatters per step where 1 of each of the "
            f"{wording.format_plural(len(units), 'unit')} is needed: reduced on more than the last micro-batch"
        )
    return None


def told(traffic: Mapping[str, Exchanged], work: Work) -> str:
    """Return gathers and reductions per step."""
    gathers, reductions = (
        traffic[kind].number / work.num_steps if kind in traffic else 0 for kind in (_ALL_GATHER, _REDUCE_SCATTER)
    )
    return (
        f"{gathers:g} all-gathers and {reductions:g} reduce-scatters of "
        f"{wording.format_plural(len(_list_unit_bytes(work)), 'unit')}"
    )


def numbers(work: Work) -> dict[str, float]:
    """Return the units."""
    return {"units": len(_list_unit_bytes(work)), "unit_bytes": sum(_list_unit_bytes(work))}


def tell_timers(timers: Sequence[Mapping[str, float]], options: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return None: it times nothing."""
    return None


def explain_no_waterfall(*, is_exact: bool) -> str | None:
    """Return that its communication cannot be left out of a step."""
    return "the strategy fsdp2, whose step cannot be made without its communication"


def explain_no_prediction(options: Mapping[str, Any], *, is_exact: bool) -> str | None:
    """Return that there is no model of it yet."""
    return "the strategy fsdp2, which has no communication model yet"


def explain_no_knobs(*, is_exact: bool) -> str | None:
    """Return None: there is some."""
    return None


def list_knobs(
    options: Mapping[str, Any], *, exchange: Mapping[str, Any], bytes_per_real_byte: float, can: Sequence[str]
) -> list[Knob]:
    """Return layers kept gathered, where they are not."""
    if not options.get(_RESHARDS, True):
        return []
    return [
        Knob(
            key=f"options.{_RESHARDS}",
            change="layers' weights kept gathered from forward to backward",
            overrides={"options": {**options, _RESHARDS: False}},
            note="one copy of the layers' weights more in memory",
        )
    ]
