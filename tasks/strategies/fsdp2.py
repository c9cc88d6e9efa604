"""Fully sharded: every unit's weights are gathered before it runs, forward and backward, its gradient reduced once.

The root's weights stay gathered from forward to backward, and a layer's where the option says so; the norm of the whole
gradient is one more sum. With several replicas each rank adds its part of the gradient up over them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_audit.process.wording import Reason, explain
from tasks.process import wording
from tasks.strategies import Bounds, Copies, Exchanges, Expected, Knob, Options, Profile, Work, explain_size

_ALL_GATHER, _REDUCE_SCATTER, _ALL_REDUCE = "all_gather", "reduce_scatter", "all_reduce"
_RESHARDS = "reshard_after_forward"
_BYTES_OF_A_NORM = 8
_MOST_PADDING = 0.05
"""Of the gradient: every rank has as many rows of a weight, of which the last may be padding."""


class Fsdp2(Profile):
    """See Profile."""

    def explain_unfit(self, options: Options, *, world_size: int, unit: str) -> str | None:
        """Return that the ranks cannot be shared out over the replicas, or that a replica would be one rank."""
        replicas = options.get("replicas", 1)
        if replicas != int(replicas) or world_size % replicas:
            return f"options.replicas: got {replicas} with world_size {world_size}; allowed: a divisor of it"
        if replicas > 1 and replicas == world_size:
            return f"options.replicas: got {replicas} with as many ranks, which shards nothing; allowed: fewer, or ddp"
        return None

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return one per replica, which its ranks hold between them."""
        number = int(options.get("replicas", 1))
        return Copies(number, number)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return every unit gathered twice per micro-batch, or once, the root once, and all reduced once per step, with
        one norm."""
        root, *layers = list(work.exchange.get("gathered_bytes", [])) or _list_unit_bytes(work)
        times = 2 if work.options.get(_RESHARDS, True) else 1
        gathered = Expected(
            Bounds(*((1 + times * len(layers)) * rounds for rounds in work.num_rounds)),
            Bounds(*((root + times * sum(layers)) // _count_shards(work) * rounds for rounds in work.num_rounds)),
        )
        if work.world_size == 1:
            return {_ALL_GATHER: gathered}
        units, steps, shards = _list_unit_bytes(work), work.num_steps, _count_shards(work)
        # Of each unit's reduced gradient a rank has a part, which replicas add up.
        number = steps * (1 + (len(units) if shards < work.world_size else 0))
        num_bytes = steps * (_BYTES_OF_A_NORM + (sum(units) // shards if shards < work.world_size else 0))
        return {
            _ALL_GATHER: gathered,
            _REDUCE_SCATTER: _make_exact(len(units) * steps, sum(units) * steps),
            _ALL_REDUCE: _make_exact(number, num_bytes),
        }

    def find_problem(self, traffic: Exchanges, work: Work) -> Reason | None:
        """Return that the units are not the model, or that they were reduced too often or too seldom."""
        if work.world_size == 1:
            return super().find_problem(traffic, work)
        units, steps = _list_unit_bytes(work), work.num_steps
        if not work.gradient_bytes <= sum(units) <= work.gradient_bytes * (1 + _MOST_PADDING):
            return explain_size("units", sum(units), work)
        if problem := _find_gather_problem(work):
            return problem
        reduced, needed = traffic[_REDUCE_SCATTER].number if _REDUCE_SCATTER in traffic else 0, len(units) * steps
        if reduced < needed:
            why = "never reduced" if reduced == 0 else "not all reduced in every step"
            return explain(
                "too_few_exchanges", "{number} reduce-scatters where {needed} are needed: gradients were " + why,
                number=reduced, needed=needed,
            )  # fmt: skip
        if reduced > needed:
            return explain(
                "too_many_exchanges",
                "{per_step:g} reduce-scatters per step where {needed} of each of the {units:plural unit} is needed: "
                "reduced on more than the last micro-batch",
                per_step=reduced / steps, units=len(units), needed=1,
            )  # fmt: skip
        return None

    def describe_traffic(self, traffic: Exchanges, work: Work) -> str:
        """Return gathers and reductions per step."""
        kinds = (_ALL_GATHER, _REDUCE_SCATTER)
        gathers, reductions = (traffic[one].number / work.num_steps if one in traffic else 0 for one in kinds)
        replicas = int(work.options.get("replicas", 1))
        return (
            f"{gathers:g} all-gathers and {reductions:g} reduce-scatters of "
            f"{wording.format_plural(len(_list_unit_bytes(work)), 'unit')}"
            f"{f', added up over {replicas} replicas' if replicas > 1 else ''}"
        )

    def list_figures(self, work: Work) -> dict[str, float]:
        """Return the units."""
        return {"units": len(_list_unit_bytes(work)), "unit_bytes": sum(_list_unit_bytes(work))}

    def explain_no_waterfall(self, *, is_exact: bool) -> str | None:
        """Return that its communication cannot be left out of a step."""
        return "the strategy fsdp2, whose step cannot be made without its communication"

    def list_knobs(self, options: Options, *, exchange: Mapping[str, Any], can: Sequence[str]) -> list[Knob]:
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


PROFILE = Fsdp2()


def _make_exact(number: int, num_bytes: int) -> Expected:
    return Expected(Bounds(number, number), Bounds(num_bytes, num_bytes))


def _count_shards(work: Work) -> int:
    return work.world_size // int(work.options.get("replicas", 1))


def _list_unit_bytes(work: Work) -> list[int]:
    return list(work.exchange.get("unit_bytes", [])) or [work.gradient_bytes]


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
