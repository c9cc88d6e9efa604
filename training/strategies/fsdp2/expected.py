"""Fully sharded: every unit's weights are gathered before it runs, forward and backward, its gradient reduced once.

The root's weights stay gathered from forward to backward, and a layer's where the option says so; the norm of the whole
gradient is one more sum. With several replicas each rank adds its part of the gradient up over them.
"""

from collections.abc import Mapping
from typing import Any

from ddp_audit.process.wording import Reason, explain, format_plural
from training.strategies import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Copies,
    Expected,
    Options,
    StrategyTraits,
    Tried,
    Work,
    expect,
    explain_replicas,
    explain_size,
)

_RESHARDS = "reshard_after_forward"
_BYTES_OF_A_NORM = 8
_MOST_PADDING = 0.05
"""Of the gradient: every rank has as many rows of a weight, of which the last may be padding."""


class Fsdp2(StrategyTraits):
    """See StrategyTraits."""

    no_waterfall = "the strategy fsdp2, whose step cannot be made without its communication"

    def explain_unfit(self, options: Options, *, world_size: int) -> str | None:
        """Return that the ranks cannot be shared out over the replicas, or that a replica would be one rank."""
        replicas = options.get("replicas", 1)
        if replicas > 1 and replicas == world_size:
            return f"options.replicas: got {replicas} with as many ranks, which shards nothing; allowed: fewer, or ddp"
        return explain_replicas(options, world_size=world_size)

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return one per replica, which its ranks hold between them."""
        number = int(options.get("replicas", 1))
        return Copies(number, number)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return every unit gathered twice per micro-batch, or once, the root once, and all reduced once per step, with
        one norm."""
        units, steps, shards = _list_units(work), work.num_steps, work.world_size // work.replicas
        root, *layers = work.list_of("gathered_bytes") or units
        times = 2 if work.options.get(_RESHARDS, True) else 1
        gathered = expect(1 + times * len(layers), (root + times * sum(layers)) // shards, work.num_rounds)
        if work.world_size == 1:
            return {ALL_GATHER: gathered}
        # Of each unit's reduced gradient a rank has a part, which replicas add up.
        number = steps * (1 + (len(units) if shards < work.world_size else 0))
        num_bytes = steps * (_BYTES_OF_A_NORM + (sum(units) // shards if shards < work.world_size else 0))
        return {
            ALL_GATHER: gathered,
            REDUCE_SCATTER: expect(len(units) * steps, sum(units) * steps),
            ALL_REDUCE: expect(number, num_bytes),
        }

    def explain_wrong_layout(self, work: Work) -> Reason | None:
        """Return that the units are not the model, or are said to be gathered in other bytes than they have.

        That is in fp32, or what is rounded in bf16.
        """
        units, gathered = _list_units(work), work.list_of("gathered_bytes")
        if not work.gradient_bytes <= sum(units) <= work.gradient_bytes * (1 + _MOST_PADDING):
            return explain_size("units", sum(units), work)
        shares = (1.0, *[0.5 if work.options.get("mixed") == "bf16" else 1.0] * (len(units) - 1))
        if gathered and (
            len(gathered) != len(units)
            or any(not share * of <= item <= of for share, item, of in zip(shares, gathered, units, strict=True))
        ):
            return explain(
                "other_bytes_gathered", "the units are gathered in {bytes:,} bytes, their weights have {needed:,}",
                bytes=sum(gathered), needed=sum(units),
            )  # fmt: skip
        return None

    def describe_layout(self, work: Work) -> tuple[str, dict[str, float]]:
        """Return units and copies."""
        units = _list_units(work)
        layout = format_plural(len(units), "unit") + f", added up over {work.replicas} replicas" * (work.replicas > 1)
        return layout, {"units": len(units), "unit_bytes": sum(units)}

    def list_tried(self, options: Options, exchange: Mapping[str, Any]) -> list[Tried]:
        """Return layers kept gathered, where they are not."""
        if not options.get(_RESHARDS, True):
            return []
        change = "layers' weights kept gathered from forward to backward"
        return [(_RESHARDS, False, change, "one copy of the layers' weights more in memory")]


TRAITS = Fsdp2()


def _list_units(work: Work) -> list[int]:
    return work.list_of("unit_bytes") or [work.gradient_bytes]
