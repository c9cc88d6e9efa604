"""Pipeline: every stage sends hidden states of each micro-batch to the next one, and their gradients back.

Once per step the first and the last stage exchange the gradient of a tied embedding, and all add up the squares of
which the norm is made. Counted is what rank 0 does, the first stage.
"""

from collections.abc import Mapping
from typing import Any

from ddp_audit.process.wording import Reason, explain, format_percent, format_plural
from training.strategies import (
    ALL_REDUCE,
    BROADCAST,
    SEND,
    Bounds,
    Copies,
    Expected,
    Options,
    StrategyTraits,
    Timers,
    Tried,
    Work,
    explain_replicas,
    explain_size,
)

_SCHEDULE = "schedule"
_SCHEDULES = {
    "1f1b": "less memory than gpipe",
    "gpipe": "all micro-batches of a step are in memory at once",
    "interleaved": "two stages per rank: half the wait, more messages",
}
_BYTES_OF_A_SQUARE = 8
_MOST_ROOM = 256
"""Bytes between a parameter and the next one that are sent with it."""


class Pipeline(StrategyTraits):
    """See StrategyTraits."""

    no_waterfall = "the strategy pipeline, none of whose stages can run without the others"
    slowed_by = ("waiting for other stages",)

    def explain_unfit(self, options: Options, *, world_size: int) -> str | None:
        """Return that the ranks cannot be shared out over the replicas, or that one has nobody to share with."""
        if options.get("zero1") and options.get("replicas", 1) == 1:
            return "options.zero1: got true with one replica, which has nobody to share with; allowed: replicas above 1"
        return explain_replicas(options, world_size=world_size)

    def count_shares(self, world_size: int, options: Options) -> int:
        """Return one per replica: its stages see the same rows."""
        return int(options.get("replicas", 1))

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return one per replica: its stages hold one between them."""
        number = int(options.get("replicas", 1))
        return Copies(number, 1 if options.get("zero1") else number)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return messages per micro-batch and one per tied embedding and step, and one sum of squares per step.

        Of v stages the first rank sends the hidden states of all, and gradients from all but the first. With replicas
        each rank's gradient is added up once, and with zero1 what each updated is sent once.
        """
        if work.world_size == 1:
            return {}
        steps, tied, row_bytes = work.num_steps, work.list_of("tied_bytes"), work.get("row_bytes")
        square_bytes = _BYTES_OF_A_SQUARE * work.get("num_parameters") * steps
        replicas, rank_bytes = work.replicas, work.list_of("rank_bytes") or [0]
        reduced, added = [min(rank_bytes) * steps, max(rank_bytes) * steps], steps
        if replicas == 1:
            reduced, added = [0, 0], 0
        expected = {
            ALL_REDUCE: Expected(
                Bounds(steps + added, steps + added), Bounds(square_bytes + reduced[0], square_bytes + reduced[1])
            )
        }
        if work.options.get("zero1") and replicas > 1:
            room = _MOST_ROOM * work.get("num_parameters")
            expected[BROADCAST] = Expected(
                Bounds(steps, replicas * steps), Bounds(min(rank_bytes) * steps, (max(rank_bytes) + room) * steps)
            )
        num_ranks = work.world_size // replicas
        if num_ranks > 1:
            per_micro_batch = 2 * (len(work.list_of("layers")) // num_ranks) - 1
            least, most = (per_micro_batch * rounds for rounds in work.num_rounds)
            tied_bytes, most_rows = sum(tied) * steps, work.get("most_rows") or 1
            expected[SEND] = Expected(
                Bounds(least + len(tied) * steps, most + len(tied) * steps),
                Bounds(least * row_bytes + tied_bytes, most * row_bytes * most_rows + tied_bytes),
            )
        return expected

    def explain_wrong_layout(self, work: Work) -> Reason | None:
        """Return that the stages are not the ranks, or not the model."""
        stages, num_ranks = work.list_of("layers"), work.world_size // work.replicas
        if not stages or len(stages) % num_ranks:
            return explain(
                "stages_are_not_ranks", "{stages:plural stage} on {ranks} ranks: each has to have as many",
                stages=len(stages), ranks=num_ranks,
            )  # fmt: skip
        ends = [-1, *(last for _, last in stages)]
        if any(first != end + 1 or last < first for (first, last), end in zip(stages, ends, strict=False)):
            return explain(
                "layers_missing", "the stages have the layers {layers}: every layer has to be in one of them",
                layers=_format_layers(work),
            )  # fmt: skip
        held = sum(work.list_of("rank_bytes")) - sum(work.list_of("tied_bytes"))
        return None if held == work.gradient_bytes else explain_size("stages", held, work)

    def describe_layout(self, work: Work) -> tuple[str, dict[str, float]]:
        """Return the cut, and what the first stage and the last have in common."""
        num_stages = len(work.list_of("layers"))
        layout = (
            f"{format_plural(num_stages, 'stage')} with the layers {_format_layers(work)}, cut so that "
            "the largest has as few weights to multiply by as can be"
            + f"; added up over {work.replicas} replicas"
            * (work.replicas > 1)
        )
        return layout, {"stages": num_stages, "tied_bytes": sum(work.list_of("tied_bytes"))}

    def explain_timers(self, timers: Timers, options: Options, *, world_size: int) -> str | None:
        """Return which share of a step's passes the ranks waited for each other, beside what theory says."""
        passes, own = (sum(timer[name] for timer in timers) for name in ("pass_seconds", "own_seconds"))
        number, least = timers[0]["num_micro_batches"], _compute_least(timers, options, world_size=world_size)
        return (
            f"its ranks wait for each other {format_percent(1 - own / passes)} of the forward and backward "
            f"passes of a step, which has {int(number):,} of each per stage; with stages that take "
            f"equally long and messages that take no time it would be {format_percent(least)}, less with more "
            "micro-batches"
        )

    def split_waits(self, timers: Timers, options: Options, *, world_size: int) -> tuple[float, str] | None:
        """Return what the mean rank waits in the passes of a step, and the bubble of stages alike."""
        if not all(timers):
            return None
        waits = sum(timer["pass_seconds"] - timer["own_seconds"] for timer in timers) / len(timers)
        least = _compute_least(timers, options, world_size=world_size)
        return waits, (
            f"of stages alike, with messages that take no time, it would be {format_percent(least)} of the passes"
        )

    def list_tried(self, options: Options, exchange: Mapping[str, Any]) -> list[Tried]:
        """Return the other schedules, interleaved where there are layers for two stages per rank."""
        now, stages = options.get(_SCHEDULE, next(iter(_SCHEDULES))), list(exchange.get("layers", []))
        num_layers = stages[-1][1] + 1 if stages else 0
        return [
            (_SCHEDULE, other, f"the schedule {other} instead of {now}", note)
            for other, note in _SCHEDULES.items()
            if other != now and (other != "interleaved" or num_layers >= 2 * len(stages) > 2)
        ]


TRAITS = Pipeline()


def _format_layers(work: Work) -> str:
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in work.list_of("layers"))


def compute_least_idle_share(options: Options, *, world_size: int, num_micro_batches: float) -> float:
    """Return the share of a step's passes that a rank has to wait where stages are equal and messages take no time.

    (p - 1) / (v m + p - 1), with p ranks, m micro-batches and v stages per rank. Source: Narayanan et al. 2021,
    Efficient large-scale language model training on GPU clusters using Megatron-LM, 2.2.
    """
    others = world_size // int(options.get("replicas", 1)) - 1
    per_rank = 2 if options.get(_SCHEDULE) == "interleaved" else 1
    return others / (per_rank * num_micro_batches + others)


def _compute_least(timers: Timers, options: Options, *, world_size: int) -> float:
    number = timers[0]["num_micro_batches"]
    return compute_least_idle_share(options, world_size=world_size, num_micro_batches=number)
