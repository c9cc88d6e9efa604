"""DistributedDataParallel: the whole gradient is all-reduced in buckets, once per optimizer step.

In exact mode (training/step/ordered_sum.py) the ranks gather the gradient of every micro-batch instead.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_audit.process.wording import Reason, explain
from tasks.process import wording
from tasks.strategies import Bounds, Exchanges, Expected, Knob, Options, Profile, Work, explain_size

_ALL_REDUCE, _ALL_GATHER, _STATISTIC = "all_reduce", "all_gather", "statistic"
_SHARE_SENT = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}
"""Of the gradient's fp32 bytes, by the option gradient_hook."""
_BYTES_PER_NUMBER = 4
_BUCKETS_MIB = (5.0, 100.0)
_LARGEST_BUCKET_MIB = 512
"""One bucket for all gradients is not tried beyond: nothing of it could be hidden behind the backward."""


_AGAINST = ("exposed communication", "DDP overhead")
"""Parts of the waterfall that the options are about."""


class Ddp(Profile):
    """See Profile."""

    def get_exchange_dtype(self, options: Options) -> str:
        """Return what gradient_hook says."""
        return str(options.get("gradient_hook", "none"))

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return all buckets once per step; in exact mode the whole gradient, in parcels, once per micro-batch."""
        if work.is_exact:
            return _compute_expected_gathers(work) if work.world_size > 1 else {}
        buckets = _list_bucket_bytes(work)
        sent = int(sum(buckets) * work.num_steps * _SHARE_SENT[self.get_exchange_dtype(work.options)])
        number = max(1, len(buckets)) * work.num_steps
        return {_ALL_REDUCE: Expected(Bounds(number, number), Bounds(sent, sent)), **_compute_expected_statistics(work)}

    def find_problem(self, traffic: Exchanges, work: Work) -> Reason | None:
        """Return how number or bytes of the exchanges are not those of one exchange of the gradient per step."""
        if work.world_size == 1:
            # Wrapped in DDP, a baseline pays for an exchange with itself.
            return super().find_problem(traffic, work)
        return _find_gather_problem(traffic, work) if work.is_exact else self._find_all_reduce_problem(traffic, work)

    def _find_all_reduce_problem(self, traffic: Exchanges, work: Work) -> Reason | None:
        buckets, accumulated, steps = _list_bucket_bytes(work), work.num_rounds_per_step, work.num_steps
        counted, num_bytes = _count_traffic(traffic, _ALL_REDUCE)
        needed = max(1, len(buckets))
        if counted < needed * steps:
            why = "never exchanged" if counted == 0 else "not all exchanged in every step"
            return explain(
                "too_few_exchanges", "{number} all-reduces where {needed} are needed: gradients were " + why,
                number=counted, needed=needed * steps,
            )  # fmt: skip
        if counted > needed * steps:
            is_every = counted >= needed * work.num_rounds[0]
            when = "on every micro-batch" if is_every else "on more than the last of {micro_batches} micro-batches"
            return explain(
                "exchanged_on_every_micro_batch" if is_every and accumulated > 1 else "too_many_exchanges",
                "{per_step:g} all-reduces per step where 1 exchange of the {buckets:plural bucket} is needed: "
                "synchronised " + (when if accumulated > 1 else "more than once"),
                per_step=counted / steps, buckets=needed, micro_batches=accumulated,
            )  # fmt: skip
        expected = self.compute_expected_traffic(work)[_ALL_REDUCE].num_bytes
        if not expected.has(num_bytes):
            hook = self.get_exchange_dtype(work.options)
            return explain(
                "other_bytes",
                "{bytes:,.0f} bytes were exchanged per step, the {buckets:plural bucket} hold {held:,}"
                + ", in {hook} {needed:,}" * (hook != "none"),
                bytes=num_bytes / steps, buckets=len(buckets), held=sum(buckets), hook=hook,
                needed=expected.least // steps,
            )  # fmt: skip
        return None if sum(buckets) == work.gradient_bytes else explain_size("buckets", sum(buckets), work)

    def describe_traffic(self, traffic: Exchanges, work: Work) -> str:
        """Return the all-reduces, or the gathers of exact mode, per step."""
        if work.is_exact:
            gathers = _count_traffic(traffic, _ALL_GATHER)[0] / work.num_steps
            return (
                f"{gathers:g} gathers of all ranks' gradients, added in one order; that all ranks then had the same "
                "sum is shown by the gates on parameters and loss curves"
            )
        reduces, buckets = _count_traffic(traffic, _ALL_REDUCE)[0] / work.num_steps, _list_bucket_bytes(work)
        mib = wording.format_three_digits(sum(buckets) / 2**20)
        statistics = _count_traffic(traffic, _STATISTIC)[0] / work.num_steps
        more = f", and {statistics:g} exchanges of what batch normalisation is over" if statistics else ""
        return f"{reduces:g} all-reduces for {wording.format_plural(len(buckets), 'bucket')} of {mib} MiB{more}"

    def list_figures(self, work: Work) -> dict[str, float]:
        """Return the buckets."""
        return {"buckets": len(_list_bucket_bytes(work)), "bucket_bytes": sum(_list_bucket_bytes(work))}

    def explain_no_waterfall(self, *, is_exact: bool) -> str | None:
        """Return None, but in exact mode: its gathers cannot be left out."""
        return "the strategy ddp in exact mode" if is_exact else None

    def explain_no_knobs(self, *, is_exact: bool) -> str | None:
        """Return that exact mode does not look at the options."""
        return "the strategy ddp in exact mode" if is_exact else None

    def list_knobs(self, options: Options, *, exchange: Mapping[str, Any], can: Sequence[str]) -> list[Knob]:
        """Return other buckets, and other ways of exchanging them."""
        buckets = [size / 2**20 for size in exchange.get("bucket_bytes", [])]
        gradient_mib = sum(buckets)
        sizes = [size for size in _BUCKETS_MIB if size < gradient_mib]
        if len(buckets) > 1 and gradient_mib <= _LARGEST_BUCKET_MIB:
            sizes.append(float(math.ceil(gradient_mib)))
        found = [
            _make_knob(
                options, "bucket_mib", size,
                "one bucket for all gradients" if size >= gradient_mib else f"buckets of {size:g} MiB",
            )
            for size in sizes
        ]  # fmt: skip
        switches = (
            ("bucket_view", True, "exchanged gradients that stay in the buckets"),
            ("static_graph", False, "DDP told that the graph never changes"),
        )
        found += [
            _make_knob(options, name, True, words)
            for name, default, words in switches
            if not options.get(name, default)
        ]
        if self.get_exchange_dtype(options) == "none":
            found.append(
                _make_knob(
                    options, "gradient_hook", "bf16", "gradients exchanged in bf16",
                    note="rounds every rank's gradient to 8 bits: the check of updates then allows for that",
                )
            )  # fmt: skip
        return found


PROFILE = Ddp()


def _compute_expected_statistics(work: Work) -> dict[str, Expected]:
    """Return what batch normalisation tells the other ranks: two collectives per layer and round.

    In the forward mean and variance of each channel and one count, in the backward two sums of each channel, in fp32.
    """
    channels = [int(number) for number in work.exchange.get("statistic_channels", [])]
    if not channels or work.world_size == 1:
        return {}
    number, num_bytes = 2 * len(channels), _BYTES_PER_NUMBER * sum(4 * size + 1 for size in channels)
    least, most = work.num_rounds
    return {_STATISTIC: Expected(Bounds(number * least, number * most), Bounds(num_bytes * least, num_bytes * most))}


def _compute_expected_gathers(work: Work) -> dict[str, Expected]:
    least, most = work.num_rounds
    num_parcels, num_bytes = int(work.exchange.get("num_parcels", 1)), work.gradient_bytes
    return {
        _ALL_GATHER: Expected(
            Bounds(num_parcels * least, num_parcels * most), Bounds(num_bytes * least, num_bytes * most)
        )
    }


def _list_bucket_bytes(work: Work) -> list[int]:
    buckets: list[int] = list(work.exchange.get("bucket_bytes", []))
    return buckets


def _find_gather_problem(traffic: Exchanges, work: Work) -> Reason | None:
    if number := _count_traffic(traffic, _ALL_REDUCE)[0]:
        return explain(
            "all_reduced_in_exact_mode", "exact mode, yet {number} all-reduces, whose order of addition nobody knows",
            number=number,
        )  # fmt: skip
    least, most = work.num_rounds
    num_bytes = _count_traffic(traffic, _ALL_GATHER)[1]
    whole, rest = divmod(num_bytes, work.gradient_bytes)
    if rest or not least <= whole <= most:
        return explain(
            "other_gathers",
            "{gradients:g} gradients were gathered in {steps:plural step}, one per micro-batch is needed: "
            + ("{least}" if least == most else "{least} to {most}"),
            gradients=num_bytes / work.gradient_bytes, steps=work.num_steps, least=least, most=most,
        )  # fmt: skip
    return None


def _count_traffic(traffic: Exchanges, kind: str) -> tuple[int, int]:
    found = traffic.get(kind)
    return (0, 0) if found is None else (found.number, found.num_bytes)


def _make_knob(options: Options, name: str, value: Any, change: str, *, note: str | None = None) -> Knob:
    return Knob(
        key=f"options.{name}", change=change, overrides={"options": {**options, name: value}}, note=note,
        against=_AGAINST,
    )  # fmt: skip
