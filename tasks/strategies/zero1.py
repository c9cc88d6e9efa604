"""ZeRO-1: the gradient is reduced as with ddp; every rank updates a share of the weights and sends it to the others."""

from ddp_audit.process.wording import Reason, explain
from tasks.process import wording
from tasks.strategies import Bounds, Copies, Exchanges, Expected, Options, Work, explain_size
from tasks.strategies.ddp import Ddp

_BROADCAST = "broadcast"
_MOST_ROOM = 256
"""Bytes between a parameter and the next one, each beginning where a tensor of its own could."""


class Zero1(Ddp):
    """The gradient as with ddp."""

    def count_copies(self, world_size: int, options: Options) -> Copies:
        """Return one copy of the parameters per rank, and one of the optimizer's state between them."""
        return Copies(world_size, 1)

    def compute_expected_traffic(self, work: Work) -> dict[str, Expected]:
        """Return the gradient as with ddp, and every rank's share of the weights once per step."""
        expected, shares = super().compute_expected_traffic(work), _list_share_bytes(work)
        if work.world_size > 1:
            number, num_bytes = len(shares) * work.num_steps, sum(shares) * work.num_steps
            expected[_BROADCAST] = Expected(Bounds(number, number), Bounds(num_bytes, num_bytes))
        return expected

    def find_problem(self, traffic: Exchanges, work: Work) -> Reason | None:
        """Return what is wrong with the gradient's exchange, or with what was sent of the weights."""
        problem = super().find_problem({kind: one for kind, one in traffic.items() if kind != _BROADCAST}, work)
        if problem or work.world_size == 1:
            return problem
        shares, sent = _list_share_bytes(work), traffic.get(_BROADCAST)
        number = 0 if sent is None else sent.number
        if number != len(shares) * work.num_steps:
            return explain(
                "other_shares_sent",
                "{per_step:g} shares of the weights were sent per step where each of the {ranks:plural rank} has to "
                "send its own once",
                per_step=number / work.num_steps, ranks=len(shares),
            )  # fmt: skip
        expected = self.compute_expected_traffic(work)[_BROADCAST].num_bytes
        if sent is None or not expected.has(sent.num_bytes):
            return explain(
                "other_bytes_sent", "{bytes:,} bytes of weights were sent, the shares hold {needed:,}",
                bytes=0 if sent is None else sent.num_bytes, needed=expected.most,
            )  # fmt: skip
        most = work.gradient_bytes + _MOST_ROOM * int(work.exchange.get("num_parameters", 0))
        return None if work.gradient_bytes <= sum(shares) <= most else explain_size("shares", sum(shares), work)

    def describe_traffic(self, traffic: Exchanges, work: Work) -> str:
        """Return the exchange of the gradient, and the shares."""
        shares = wording.format_plural(len(_list_share_bytes(work)), "share")
        return f"{super().describe_traffic(traffic, work)}; {shares} of the updated weights sent"

    def list_figures(self, work: Work) -> dict[str, float]:
        """Return buckets and shares."""
        return {
            **super().list_figures(work),
            "shares": len(_list_share_bytes(work)),
            "share_bytes": sum(_list_share_bytes(work)),
        }

    def explain_no_waterfall(self, *, is_exact: bool) -> str | None:
        """Return that an update of a share is no part of what one rank does."""
        return "the strategy zero1, each of whose ranks makes a share of the update"

    def explain_no_knobs(self, *, is_exact: bool) -> str | None:
        """Return None: they are those of ddp."""
        return None


PROFILE = Zero1()


def _list_share_bytes(work: Work) -> list[int]:
    return [size for size in work.exchange.get("share_bytes", []) if size]
