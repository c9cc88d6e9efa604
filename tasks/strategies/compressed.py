"""Compressed gradients: PowerSGD's factors are all-reduced, numbers of 8 bits gathered, once per optimizer step."""

from collections.abc import Mapping
from typing import Any

from tasks.process import wording
from tasks.strategies import Bounds, Copies, Exchanged, Expected, OtherTraining, Work
from tasks.strategies.single import count_shares as count_shares
from tasks.strategies.single import get_exchange_dtype as get_exchange_dtype
from tasks.strategies.single import list_knobs as list_knobs
from tasks.strategies.single import split_waits as split_waits
from tasks.strategies.single import tell_timers as tell_timers

_RANK = 4
"""As OPTIONS in training/strategies/compressed.py has it; a test holds the two together."""
_BLOCK, _BYTES_PER_SCALE, _BYTES_PER_NUMBER = 256, 4, 4
"""Of int8: numbers that share a scale, and each in a byte; uncompressed they are fp32."""


def require(options: Mapping[str, Any], *, is_exact: bool) -> None:
    """Raise ValueError for a rank that is none or has no meaning, and exact mode."""
    if is_exact:
        raise ValueError("strategy: got compressed with train.exact; allowed: exact: false, or strategy ddp")
    if (rank := options.get("rank", _RANK)) != int(rank):
        raise ValueError(f"options.rank: got {rank}; allowed: a whole number from 1 on")
    if "rank" in options and _is_int8(options):
        raise ValueError(f"options.rank: got {rank} with compression int8; allowed: none, or compression powersgd")


def explain_unfit(options: Mapping[str, Any], *, world_size: int, unit: str) -> str | None:
    """Return that one rank exchanges nothing."""
    if world_size == 1:
        return "world_size: got 1 with strategy compressed; allowed: 2 or more, or strategy single"
    return None


def _is_int8(options: Mapping[str, Any]) -> bool:
    return bool(options.get("compression") == "int8")


def find_other_training(options: Mapping[str, Any]) -> OtherTraining:
    """Return what its gradients become."""
    rank = int(options.get("rank", _RANK))
    return OtherTraining(f"compresses gradients to {'8 bits' if _is_int8(options) else f'rank {rank}'}", 1)


def count_copies(world_size: int, options: Mapping[str, Any]) -> Copies:
    """Return one per rank: what each has left over is in all ranks' digests."""
    return Copies(world_size, world_size)


def compute_expected_traffic(work: Work) -> dict[str, Expected]:
    """Return what travels of each gradient, by its shape alone, once per step."""
    if work.world_size == 1:
        return {}
    number = len(_list_parcels(work))
    if not _is_int8(work.options):
        # What is sent whole, and one factor after the other.
        number = 2 + any(not _is_factored(shape, work) for shape in _list_shapes(work))
    num_bytes = sum(_count_bytes(shape, work) for shape in _list_shapes(work))
    number, num_bytes = number * work.num_steps, num_bytes * work.num_steps
    return {_find_kind(work.options): Expected(Bounds(number, number), Bounds(num_bytes, num_bytes))}


def _find_kind(options: Mapping[str, Any]) -> str:
    return "all_gather" if _is_int8(options) else "all_reduce"


def _list_parcels(work: Work) -> list[list[tuple[int, int]]]:
    return [[(rows, columns) for rows, columns in parcel] for parcel in work.exchange.get("parcels", [])]


def _list_shapes(work: Work) -> list[tuple[int, int]]:
    return [shape for parcel in _list_parcels(work) for shape in parcel]


def _is_factored(shape: tuple[int, int], work: Work) -> bool:
    """Return whether two factors are smaller than the matrix."""
    rows, columns = shape
    return (rows + columns) * int(work.options.get("rank", _RANK)) < rows * columns


def _count_bytes(shape: tuple[int, int], work: Work) -> int:
    rows, columns = shape
    if _is_int8(work.options):
        return -(-rows * columns // _BLOCK) * (_BLOCK + _BYTES_PER_SCALE)
    numbers = (rows + columns) * int(work.options.get("rank", _RANK)) if _is_factored(shape, work) else rows * columns
    return _BYTES_PER_NUMBER * numbers


def _count_whole_bytes(work: Work) -> int:
    """Return the bytes of what is not compressed."""
    if _is_int8(work.options):
        return 0
    return sum(_count_bytes(shape, work) for shape in _list_shapes(work) if not _is_factored(shape, work))


def find_problem(traffic: Mapping[str, Exchanged], work: Work) -> str | None:
    """Return how the number or the bytes of the exchanges are not those of one compressed gradient per step."""
    counted = sum(one.number for one in traffic.values())
    if work.world_size == 1:
        return f"one rank, yet {counted} exchanges of gradients" if counted else None
    held = _BYTES_PER_NUMBER * sum(rows * columns for rows, columns in _list_shapes(work))
    if held != work.gradient_bytes:
        return f"the exchanged gradients hold {held:,} bytes, that of all parameters has {work.gradient_bytes:,}"
    (expected,) = compute_expected_traffic(work).values()
    if not expected.number.has(counted):
        return (
            f"{counted / work.num_steps:g} exchanges of compressed gradients per step, "
            f"{expected.number.least / work.num_steps:g} are needed"
        )
    num_bytes = sum(one.num_bytes for one in traffic.values())
    if not expected.num_bytes.has(num_bytes):
        return (
            f"{num_bytes / work.num_steps:,.0f} bytes were exchanged per step, compressed gradients have "
            f"{expected.num_bytes.least / work.num_steps:,.0f}"
        )
    return None


def describe_traffic(traffic: Mapping[str, Exchanged], work: Work) -> str:
    """Return the exchanges per step, how much smaller they are, and what of them is whole."""
    kind = _find_kind(work.options)
    number, num_bytes = (traffic[kind].number, traffic[kind].num_bytes) if kind in traffic else (0, 0)
    mib = wording.format_three_digits(num_bytes / work.num_steps / 2**20)
    whole = wording.format_three_digits(_count_whole_bytes(work) / 2**20)
    kinds = wording.format_plural(number // work.num_steps, kind.replace("_", "-"))
    return f"{kinds} of {mib} MiB, {whole} MiB of it not compressed"


def list_figures(work: Work) -> dict[str, float]:
    """Return what is compressed, and what is not."""
    sent = sum(_count_bytes(shape, work) for shape in _list_shapes(work))
    return {"compressed_bytes": sent - _count_whole_bytes(work), "whole_bytes": _count_whole_bytes(work)}


def explain_no_waterfall(*, is_exact: bool) -> str | None:
    """Return that computing is part of its exchange."""
    return "the strategy compressed, whose exchange computes as well"


def explain_no_prediction(options: Mapping[str, Any], *, is_exact: bool) -> str | None:
    """Return the same."""
    return explain_no_waterfall(is_exact=is_exact)


def explain_no_knobs(*, is_exact: bool) -> str | None:
    """Return that no option leaves the training what it is."""
    return "the strategy compressed, whose options change what is trained"
