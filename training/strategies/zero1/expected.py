"""ZeRO-1: the gradient is reduced as with ddp; every rank updates a share of the weights and sends it to the others."""

from ddp_audit.process.wording import Reason, format_plural
from training.strategies import BROADCAST, Copies, Expected, Options, Work, expect, explain_size
from training.strategies.ddp.expected import Ddp

_MOST_ROOM = 256
"""Bytes between a parameter and the next one, each beginning where a tensor of its own could."""


class Zero1(Ddp):
    """The gradient as with ddp."""

    no_waterfall = "the strategy zero1, each of whose ranks makes a share of the update"

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return one copy of the parameters per rank, and one of the optimizer's state between them."""
        return Copies(world_size, 1)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return the gradient as with ddp, and every rank's share of the weights once per step."""
        expected, shares = super().compute_expected_traffic(work), _list_shares(work)
        if work.world_size > 1:
            expected[BROADCAST] = expect(len(shares) * work.num_steps, sum(shares) * work.num_steps)
        return expected

    def explain_wrong_layout(self, work: Work) -> Reason | None:
        """Return that the buckets are not the gradient, or the shares not the weights."""
        held = sum(_list_shares(work))
        most = work.gradient_bytes + _MOST_ROOM * work.get("num_parameters")
        is_right = work.gradient_bytes <= held <= most
        return super().explain_wrong_layout(work) or (None if is_right else explain_size("shares", held, work))

    def describe_layout(self, work: Work) -> tuple[str, dict[str, float]]:
        """Return buckets and shares."""
        layout, figures = super().describe_layout(work)
        shares = _list_shares(work)
        return (
            f"{layout} and {format_plural(len(shares), 'share')} of the updated weights",
            {**figures, "shares": len(shares), "share_bytes": sum(shares)},
        )


TRAITS = Zero1()


def _list_shares(work: Work) -> list[int]:
    return [size for size in work.list_of("share_bytes") if size]
