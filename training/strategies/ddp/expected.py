"""DistributedDataParallel: the whole gradient is all-reduced in buckets, once per optimizer step.

In exact mode the ranks gather the gradient of every micro-batch instead.
"""

import math
from collections.abc import Mapping
from typing import Any

from ddp_audit.process.wording import Reason, format_plural, format_three_digits
from training.strategies import (
    ALL_GATHER,
    ALL_REDUCE,
    STATISTIC,
    Expected,
    Options,
    StrategyTraits,
    Tried,
    Work,
    expect,
    explain_size,
    get_exchange_dtype,
)

_SHARE_SENT = {"none": 1.0, "bf16": 0.5, "fp16": 0.5}
"""Of the gradient's fp32 bytes, by the option gradient_hook."""
_BYTES_PER_NUMBER = 4
_BUCKETS_MIB = (5.0, 100.0)
_LARGEST_BUCKET_MIB = 512
"""One bucket for all gradients is not tried beyond: nothing of it could be hidden behind the backward."""
_KNOBS: tuple[tuple[str, Any, Any, str, str | None], ...] = (
    ("bucket_view", True, True, "exchanged gradients that stay in the buckets", None),
    ("static_graph", False, True, "DDP told that the graph never changes", None),
    (
        "gradient_hook", "none", "bf16", "gradients exchanged in bf16",
        "rounds every rank's gradient to 8 bits: the check of updates then allows for that",
    ),
)  # fmt: skip
"""Option, its default, what is worth trying, that in words, and what else it changes."""


class Ddp(StrategyTraits):
    """See StrategyTraits."""

    slowed_by = "exposed communication", "DDP overhead"

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return all buckets once per step; in exact mode the whole gradient, in parcels, once per micro-batch.

        Batch normalisation tells the other ranks in each round and layer, forward, mean and variance of each channel
        and one count, and backward two sums of each channel, in fp32.
        """
        if work.is_exact:
            gathered = expect(int(work.exchange.get("num_parcels", 1)), work.gradient_bytes, work.num_rounds)
            return {ALL_GATHER: gathered} if work.world_size > 1 else {}
        buckets = work.list_of("bucket_bytes")
        sent = int(sum(buckets) * work.num_steps * _SHARE_SENT[get_exchange_dtype("ddp", work.options)])
        results = {ALL_REDUCE: expect(max(1, len(buckets)) * work.num_steps, sent)}
        channels = [int(number) for number in work.list_of("statistic_channels")]
        if channels and work.world_size > 1:
            num_bytes = _BYTES_PER_NUMBER * sum(4 * size + 1 for size in channels)
            results[STATISTIC] = expect(2 * len(channels), num_bytes, work.num_rounds)
        return results

    def explain_wrong_layout(self, work: Work) -> Reason | None:
        """Return that the buckets are not the gradient; in exact mode there are none."""
        held = sum(work.list_of("bucket_bytes"))
        return None if work.is_exact or held == work.gradient_bytes else explain_size("buckets", held, work)

    def describe_layout(self, work: Work) -> tuple[str, dict[str, float]]:
        """Return the buckets, or what exact mode does."""
        buckets = work.list_of("bucket_bytes")
        layout = f"{format_plural(len(buckets), 'bucket')} of {format_three_digits(sum(buckets) / 2**20)} MiB"
        if work.is_exact:
            layout = (
                "all ranks' gradients, added in one order; the gates on parameters and loss show that the sum is one"
            )
        return layout, {"buckets": len(buckets), "bucket_bytes": sum(buckets)}

    def list_tried(self, options: Options, exchange: Mapping[str, Any]) -> list[Tried]:
        """Return other buckets, and other ways of exchanging them."""
        buckets = [size / 2**20 for size in exchange.get("bucket_bytes", [])]
        gradient_mib = sum(buckets)
        tried: list[Tried] = [
            ("bucket_mib", size, f"buckets of {size:g} MiB", None) for size in _BUCKETS_MIB if size < gradient_mib
        ]
        if len(buckets) > 1 and gradient_mib <= _LARGEST_BUCKET_MIB:
            tried.append(("bucket_mib", float(math.ceil(gradient_mib)), "one bucket for all gradients", None))
        return tried + [
            (name, value, change, note)
            for name, default, value, change, note in _KNOBS
            if (now := options.get(name, default)) == "none" or now is False
        ]


TRAITS = Ddp()
