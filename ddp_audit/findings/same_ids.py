"""Does the same text become the same ids in every process?"""

from collections.abc import Iterable

from ddp_audit.evidence import has_no_integers, make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import Reason, explain
from ddp_audit.rank_record import RankRecord

NAME = "Same ids for the same text"
QUESTION = "Does a row of the data become the same token ids on every rank, and in every cell?"
CLASS = "wrong training"
SAYS = {
    "ids_renamed": "Each process has a vocabulary of its own: id {id} on {process} is {other_id} on {other_process}",
    "ids_cut": "Ranks read unlike texts: {process} has at most {most} ids of a row, {other_process} {other_most}",
}
REMEDY = (
    "tokenise alike in every process; build the vocabulary once and save it, or use a digest such as zlib.crc32: "
    "Python's own hash() of a text is another one in every process, unless PYTHONHASHSEED is set"
)

_FEWEST_PAIRS = 20
_MOST_EQUAL = 0.3
_MOST_TARGETS = 2.0
"""Pairs per id: a hash gives some texts the same id in one process and not in another."""
_FEWEST_REPEATS = 2.0
_FEWEST_IDS = 8
_FEWEST_ROWS = 20
_FEWEST_CUT = 3
_MOST_OTHER = 0.5

Heads = dict[str, list[int]]


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the first ids of rows that two processes were fed, those of the cell and of the baseline."""
    others = (
        []
        if cell == audit.baseline
        else [(f"{audit.baseline} rank {one.rank}", one) for one in audit.ranks(audit.baseline)]
    )
    mine = [(f"rank {one.rank}", one) for one in audit.ranks(cell)]
    if len(mine) + len(others) < 2:
        return None
    if has_no_integers(audit, cell):
        return None
    num_rows, unclear = 0, 0
    for at, (name, rank) in enumerate(mine):
        for other_name, other in [*others, *mine[:at]]:
            if cut := _find_cut(_collect_lengths(rank), _collect_lengths(other)):
                return make_failed_finding(_describe_cut(cell, name, other_name, *cut))
            pairs, rows = _pair_ids(_collect_heads(rank), _collect_heads(other))
            if len(pairs) < _FEWEST_PAIRS:
                continue
            verdict = _judge(pairs)
            if verdict == "renamed":
                return make_failed_finding(_describe(cell, rank, name, other_name, pairs, rows))
            num_rows += rows
            unclear += verdict == "other"
    if unclear:
        return make_unobservable(cell, "other_ids", "the same rows hold other ids, as where they are changed at random")
    if not num_rows:
        num_rows = _count_rows_of_baseline(audit, cell)
    if not num_rows:
        return make_unobservable(
            cell, "no_row_seen_twice", "no row of token ids with a known index was seen by two processes"
        )
    return make_finding(
        [],
        "{cell}: {rows_compared:plural row} that two processes were fed hold the same ids",
            cell=cell, rows_compared=num_rows,
    )  # fmt: skip


def _count_rows_of_baseline(audit: Audit, cell: str) -> int:
    """Return how many rows that are known by their content alone hold what a row of the baseline holds; 0 for few."""
    theirs = {content for rank in audit.ranks(audit.baseline) for content in _list_contents(rank)}
    num_rows = 0
    for rank in audit.ranks(cell):
        mine = _list_contents(rank)
        same = mine & theirs
        if len(same) < max(_FEWEST_ROWS, (1 - _MOST_OTHER) * len(mine)):
            return 0
        num_rows += len(same)
    return num_rows


def _list_contents(rank: RankRecord) -> set[str]:
    """Return the contents of rows that are made of ids alone: those of other ones say nothing of ids beside them."""
    return {
        content for _, micro in rank.micros() if micro.get("has_rows_of_ids") for content in micro.get("rows") or []
        if content
    }  # fmt: skip


def _collect_heads(rank: RankRecord) -> Heads:
    found: Heads = {}
    for _, micro in rank.micros():
        for index, head in zip(micro.get("ids") or [], micro.get("heads") or [], strict=False):
            found.setdefault(f"{micro.get('loader')}#{index}", head)
    return found


def _collect_lengths(rank: RankRecord) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, micro in rank.micros():
        for index, length in zip(micro.get("ids") or [], micro.get("lengths") or [], strict=False):
            found.setdefault(f"{micro.get('loader')}#{index}", length)
    return found


def _find_cut(mine: dict[str, int], theirs: dict[str, int]) -> tuple[int, int, int, int] | None:
    """Return the most ids of a row here and there, and how many rows of how many are cut; None if both have the same.

    One of the two has every row as long as the other one, up to a length beyond which all are cut.
    """
    both = [(length, theirs[key]) for key, length in mine.items() if key in theirs]
    here, there = (max((pair[at] for pair in both), default=0) for at in (0, 1))
    cut = sum(one != other for one, other in both)
    limit = min(here, there)
    if cut < _FEWEST_CUT or any(min(one, limit) != min(other, limit) for one, other in both):
        return None
    return here, there, cut, len(both)


def _describe_cut(cell: str, name: str, other: str, here: int, there: int, cut: int, rows: int) -> Reason:
    return explain(
        "ids_cut",
        "{cell}: {rows_cut} of {rows_compared:plural row} that both were fed are cut: {process} has at most {most} ids "
        "of a row, {other_process} up to {other_most}",
        cell=cell, rows_cut=cut, rows_compared=rows,
        process=name if here < there else other, most=min(here, there),
        other_process=other if here < there else name, other_most=max(here, there),
    )  # fmt: skip


def _pair_ids(mine: Heads, theirs: Heads) -> tuple[list[tuple[int, int]], int]:
    """Return the ids that stand at the same place of the same row, and how many rows were compared."""
    common = [key for key in mine if key in theirs]
    pairs = [pair for key in common for pair in zip(mine[key], theirs[key], strict=False) if pair != (0, 0)]
    return pairs, len(common)


def _judge(pairs: Iterable[tuple[int, int]]) -> str:
    """Return "same", "renamed" where each id stands for another one throughout, or "other"."""
    every = list(pairs)
    different = set(every)
    if sum(one == other for one, other in different) > _MOST_EQUAL * len(different):
        return "same"
    num_ids = len({one for one, _ in different})
    is_throughout = len(different) <= _MOST_TARGETS * num_ids and len(every) >= _FEWEST_REPEATS * len(different)
    return "renamed" if is_throughout and num_ids >= _FEWEST_IDS else "other"


def _describe(
    cell: str, rank: RankRecord, name: str, other: str, pairs: list[tuple[int, int]], num_rows: int
) -> Reason:
    one, another = next(pair for pair in pairs if pair[0] != pair[1])
    start = rank.start or {}
    salted = "; hashes of texts are salted in this process" * bool(start.get("is_hash_salted"))
    return explain(
        "ids_renamed",
        "{cell}: what is id {id} on {process} is id {other_id} on {other_process}, and so throughout, in "
        "{rows_compared:plural row} that both were fed: each has a vocabulary of its own" + salted,
        cell=cell, id=one, process=name, other_id=another, other_process=other, rows_compared=num_rows,
    )  # fmt: skip
