"""One rank, the plain module: it exchanges nothing and has no options."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_audit.process.wording import Reason, explain
from tasks.strategies import Copies, Exchanged, Expected, Knob, Work


def require(options: Mapping[str, Any]) -> None:
    """Return: there is none, or all go together."""


def explain_unfit(options: Mapping[str, Any], *, world_size: int, unit: str) -> str | None:
    """Return None: it is for any."""
    return None


def get_exchange_dtype(options: Mapping[str, Any]) -> str:
    """Return none."""
    return "none"


def count_shares(world_size: int, options: Mapping[str, Any]) -> int:
    """Return one per rank."""
    return world_size


def count_copies(world_size: int, options: Mapping[str, Any]) -> Copies:
    """Return 1."""
    return Copies(1, 1)


def compute_expected_traffic(work: Work) -> dict[str, Expected]:
    """Return nothing."""
    return {}


def find_problem(traffic: Mapping[str, Exchanged], work: Work) -> Reason | None:
    """Return that there was an exchange, if there was."""
    number = sum(kind.number for kind in traffic.values())
    return explain("one_rank_exchanged", "one rank, yet {number} exchanges", number=number) if number else None


def describe_traffic(traffic: Mapping[str, Exchanged], work: Work) -> str:
    """Return that there was none."""
    return "no exchange"


def list_figures(work: Work) -> dict[str, float]:
    """Return nothing."""
    return {}


def tell_timers(timers: Sequence[Mapping[str, float]], options: Mapping[str, Any], *, world_size: int) -> str | None:
    """Return None: there is one rank."""
    return None


def split_waits(
    timers: Sequence[Mapping[str, float]], options: Mapping[str, Any], *, world_size: int
) -> tuple[float, str] | None:
    """Return None: its ranks time no waits."""
    return None


def explain_no_waterfall(*, is_exact: bool) -> str | None:
    """Return that one rank loses nothing to others."""
    return "one rank, which loses nothing to others"


def explain_no_knobs(*, is_exact: bool) -> str | None:
    """Return None: there is no option."""
    return None


def list_knobs(
    options: Mapping[str, Any], *, exchange: Mapping[str, Any], bytes_per_real_byte: float, can: Sequence[str]
) -> list[Knob]:
    """Return nothing."""
    return []
