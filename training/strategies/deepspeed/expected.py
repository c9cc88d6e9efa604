"""DeepSpeed's ZeRO: gradients are reduced in buckets, per step or per micro-batch, and updated weights gathered.

In stages 1 and 2 a bucket is all-reduced, and every group of weights gathered after the update. In stage 3 buckets are
reduce-scattered, and weights gathered while they are needed: how often is DeepSpeed's to decide, so that there are
bounds.
"""

from ddp_audit.process.wording import Reason, format_plural
from training.strategies import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Bounds,
    Copies,
    Expected,
    Options,
    StrategyTraits,
    Work,
    expect,
    explain_size,
    fill_options,
)

_MOST_PADDING = 0.05
"""Of the gradient: shares are of one size, the last of which may be padding."""


class DeepSpeed(StrategyTraits):
    """See StrategyTraits."""

    no_waterfall = "the strategy deepspeed, whose step cannot be made without its communication"
    no_advice = "the strategy deepspeed, whose options are for whoever knows it"
    no_rehearsal = "its engine asks what is in its tensors"

    def explain_unfit(self, options: Options, *, world_size: int) -> str | None:
        """Return what a stage has not."""
        if (stage := _get_stage(options)) == 3 or "whole_below" not in options:
            return None
        return (
            f"options.whole_below: got {options['whole_below']} with stage {stage}, whose weights are all whole; "
            "allowed: none, or stage 3"
        )

    def has_own_layers(self, options: Options) -> bool:
        """Return whether weights are in shares: linear layers of those are DeepSpeed's own."""
        return _get_stage(options) == 3

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return one copy of the weights per rank, in stage 3 one between them, and one of the moments between them."""
        return Copies(1 if _get_stage(options) == 3 else world_size, 1)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return the buckets of every reduction, and once per step each group's weights, and its norm.

        In stage 3 every weight that is in shares is gathered for the forward, but for one that an evaluation left
        there, and again for the backward unless it is still there; those that are whole, once per step, one by one.
        """
        stage, steps, shares = _get_stage(work.options), work.num_steps, work.list_of("share_bytes")
        buckets, bucket_bytes = work.get("num_buckets"), work.get("bucket_bytes")
        rounds = (steps, steps) if stage == 1 else work.num_rounds
        bytes_of_a_norm = 8 if stage == 3 and work.options.get("offload", "none") == "none" else 4
        norms = len(shares) * steps, bytes_of_a_norm * len(shares) * steps
        if stage < 3:
            expected = {ALL_REDUCE: expect(buckets, bucket_bytes, rounds, more=norms)}
            if work.world_size > 1:
                expected[ALL_GATHER] = expect(len(shares) * steps, sum(shares) * steps)
            return expected
        expected = {
            REDUCE_SCATTER: expect(buckets, bucket_bytes, rounds),
            ALL_REDUCE: expect(*norms),
        }
        if work.world_size > 1:
            number, num_whole, largest, whole = (
                work.get(name) for name in ("num_sharded", "num_whole", "largest_share_bytes", "whole_share_bytes")
            )
            sharded, (least, most) = sum(shares) - whole, rounds
            expected[ALL_GATHER] = Expected(
                Bounds((1 if number > 1 else 0) * least + num_whole * steps, 2 * number * most + num_whole * steps),
                Bounds((sharded - largest) * least + whole * steps, 2 * sharded * most + whole * steps),
            )
        return expected

    def explain_wrong_layout(self, work: Work) -> Reason | None:
        """Return that buckets or shares are not the model."""
        most = work.gradient_bytes * (1 + _MOST_PADDING)
        reduced, held = work.get("bucket_bytes"), sum(work.list_of("share_bytes")) * work.world_size
        if not work.gradient_bytes <= reduced <= (most if _get_stage(work.options) == 3 else work.gradient_bytes):
            return explain_size("buckets", reduced, work)
        if not work.gradient_bytes <= held <= most:
            return explain_size("shares", held, work)
        return None

    def describe_layout(self, work: Work) -> tuple[str, dict[str, float]]:
        """Return in how many groups the weights are."""
        shares = work.list_of("share_bytes")
        layout = f"weights in {format_plural(len(shares), 'group')}, their gradient and its norm"
        return layout, {"buckets": work.get("num_buckets"), "share_bytes": sum(shares)}


TRAITS = DeepSpeed()


def _get_stage(options: Options) -> int:
    return int(fill_options("deepspeed", options)["stage"])
