"""Fully sharded: every unit's weights are gathered before it runs, forward and backward, its gradient reduced once.

The root's weights stay gathered from forward to backward, and a layer's where the option says so; the norm of the whole
gradient is one more sum. With several replicas each rank adds its part of the gradient up over them. In exact mode a
gradient goes to its owners after every micro-batch, and is gathered once, weight by weight, for its norm.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.process import wording
from tasks.process.reasons import Reason, explain
from tasks.strategies import Bounds, Copies, Exchanged, Expected, Knob, Work, explain_size, single
from tasks.strategies.single import count_shares as count_shares
from tasks.strategies.single import explain_no_knobs as explain_no_knobs
from tasks.strategies.single import get_exchange_dtype as get_exchange_dtype
from tasks.strategies.single import split_waits as split_waits
from tasks.strategies.single import tell_timers as tell_timers

_ALL_GATHER, _REDUCE_SCATTER, _ALL_REDUCE = "all_gather", "reduce_scatter", "all_reduce"
_ALL_TO_ALL = "all_to_all"
_RESHARDS = "reshard_after_forward"
_BYTES_OF_A_NORM = 8
_MOST_PADDING = 0.05
"""Of the gradient: every rank has as many rows of a weight, of which the last may be padding."""


def require(options: Mapping[str, Any], *, is_exact: bool) -> None:
    """Raise ValueError for several replicas in exact mode, whose sums are added up in whatever order."""
    if is_exact and options.get("replicas", 1) != 1:
        raise ValueError(f"options.replicas: got {options['replicas']} with train.exact; allowed: 1, or exact: false")


def explain_unfit(options: Mapping[str, Any], *, world_size: int, unit: str) -> str | None:
    """Return that the ranks cannot be shared out over the replicas, or that a replica would be one rank."""
    replicas = options.get("replicas", 1)
    if replicas != int(replicas) or world_size % replicas:
        return f"options.replicas: got {replicas} with world_size {world_size}; allowed: a divisor of it"
    if replicas > 1 and replicas == world_size:
        return f"options.replicas: got {replicas} with as many ranks, which shards nothing; allowed: fewer, or ddp"
    return None


def count_copies(world_size: int, options: Mapping[str, Any]) -> Copies:
    """Return one per replica, which its ranks hold between them."""
    number = int(options.get("replicas", 1))
    return Copies(number, number)


def compute_expected_traffic(work: Work) -> dict[str, Expected]:
    """Return every unit gathered twice per micro-batch, or once, the root once, and all reduced once per step, with one
    norm; in exact mode reduced per micro-batch."""
    gathered = _compute_expected_gathers(work)
    if work.world_size == 1:
        return {_ALL_GATHER: gathered}
    units, steps, shards = _list_unit_bytes(work), work.num_steps, _count_shards(work)
    if work.is_exact:
        norms, whole = int(work.exchange.get("num_parameters", 0)) * steps, sum(units) // shards * steps
        least, most = work.num_rounds
        return {
            _ALL_GATHER: Expected(
                Bounds(*(number + norms for number in gathered.number)),
                Bounds(*(num_bytes + whole for num_bytes in gathered.num_bytes)),
            ),
            _ALL_TO_ALL: Expected(
                Bounds(len(units) * least, len(units) * most), Bounds(sum(units) * least, sum(units) * most)
            ),
        }
    # Of each unit's reduced gradient a rank has a part, which replicas add up.
    number = steps * (1 + (len(units) if shards < work.world_size else 0))
    num_bytes = steps * (_BYTES_OF_A_NORM + (sum(units) // shards if shards < work.world_size else 0))
    return {
        _ALL_GATHER: gathered,
        _REDUCE_SCATTER: _make_exact(len(units) * steps, sum(units) * steps),
        _ALL_REDUCE: _make_exact(number, num_bytes),
    }


def _compute_expected_gathers(work: Work) -> Expected:
    root, *layers = list(work.exchange.get("gathered_bytes", [])) or _list_unit_bytes(work)
    times = 2 if work.options.get(_RESHARDS, True) else 1
    return Expected(
        Bounds(*((1 + times * len(layers)) * rounds for rounds in work.num_rounds)),
        Bounds(*((root + times * sum(layers)) // _count_shards(work) * rounds for rounds in work.num_rounds)),
    )


def _make_exact(number: int, num_bytes: int) -> Expected:
    return Expected(Bounds(number, number), Bounds(num_bytes, num_bytes))


def _count_shards(work: Work) -> int:
    return work.world_size // int(work.options.get("replicas", 1))


def _list_unit_bytes(work: Work) -> list[int]:
    return list(work.exchange.get("unit_bytes", [])) or [work.gradient_bytes]


def find_problem(traffic: Mapping[str, Exchanged], work: Work) -> Reason | None:
    """Return that the units are not the model, or that they were reduced too often or too seldom."""
    if work.world_size == 1:
        return single.find_problem(traffic, work)
    units, steps = _list_unit_bytes(work), work.num_steps
    if not work.gradient_bytes <= sum(units) <= work.gradient_bytes * (1 + _MOST_PADDING):
        return explain_size("units", sum(units), work)
    if problem := _find_gather_problem(work):
        return problem
    kind, name = (_ALL_TO_ALL, "all-to-alls") if work.is_exact else (_REDUCE_SCATTER, "reduce-scatters")
    times = work.num_rounds if work.is_exact else (steps, steps)
    reduced = traffic[kind].number if kind in traffic else 0
    if reduced < len(units) * times[0]:
        why = "never reduced" if reduced == 0 else f"not all reduced in every {'round' if work.is_exact else 'step'}"
        return explain(
            "too_few_exchanges", "{number} {kind} where {needed} are needed: gradients were " + why,
            number=reduced, kind=name, needed=len(units) * times[0],
        )  # fmt: skip
    if reduced > len(units) * times[1]:
        when = "more than once per micro-batch" if work.is_exact else "on more than the last micro-batch"
        return explain(
            "too_many_exchanges",
            "{per_step:g} {kind} per step where {needed} of each of the {units:plural unit} is needed: reduced " + when,
            per_step=reduced / steps, kind=name, units=len(units),
            needed=1 if kind == _REDUCE_SCATTER else work.num_rounds_per_step,
        )  # fmt: skip
    return None


def _find_gather_problem(work: Work) -> Reason | None:
    """Return that weights are said to be gathered in other bytes than they have, in fp32 or what is rounded in bf16."""
    units, gathered = _list_unit_bytes(work), list(work.exchange.get("gathered_bytes", []))
    shares = (1.0, *[0.5 if work.options.get("mixed") == "bf16" else 1.0] * (len(units) - 1))
    if gathered and (
        len(gathered) != len(units)
        or any(not share * of <= one <= of for share, one, of in zip(shares, gathered, units, strict=True))
    ):
        return explain(
            "other_bytes_gathered", "the units are gathered in {bytes:,} bytes, their weights have {needed:,}",
            bytes=sum(gathered), needed=sum(units),
        )  # fmt: skip
    return None


def describe_traffic(traffic: Mapping[str, Exchanged], work: Work) -> str:
    """Return gathers and reductions per step."""
    kind, name = (_ALL_TO_ALL, "all-to-alls in one order") if work.is_exact else (_REDUCE_SCATTER, "reduce-scatters")
    gathers, reductions = (traffic[one].number / work.num_steps if one in traffic else 0 for one in (_ALL_GATHER, kind))
    replicas = int(work.options.get("replicas", 1))
    return (
        f"{gathers:g} all-gathers and {reductions:g} {name} of "
        f"{wording.format_plural(len(_list_unit_bytes(work)), 'unit')}"
        f"{f', added up over {replicas} replicas' if replicas > 1 else ''}"
    )


def list_figures(work: Work) -> dict[str, float]:
    """Return the units."""
    return {"units": len(_list_unit_bytes(work)), "unit_bytes": sum(_list_unit_bytes(work))}


def explain_no_waterfall(*, is_exact: bool) -> str | None:
    """Return that its communication cannot be left out of a step."""
    return "the strategy fsdp2, whose step cannot be made without its communication"


def explain_no_prediction(options: Mapping[str, Any], *, is_exact: bool) -> str | None:
    """Return what the model of units, gathered and reduced one after another, does not know."""
    if is_exact:
        return "the strategy fsdp2 in exact mode"
    return (
        "the strategy fsdp2 with offload, whose copies to the host are in no model" if _is_offloaded(options) else None
    )


def _is_offloaded(options: Mapping[str, Any]) -> bool:
    return bool(options.get("offload", "none") != "none")


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
