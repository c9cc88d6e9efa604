"""Do rows become the same token ids, and the same classes, in every process?"""

from itertools import chain
from operator import lt
from typing import Any

from ddp_audit.findings import WRONG, Ranks, fail, has_no_integers, make_unobservable, question, succeed
from ddp_audit.findings.rows import FEWEST_AGAIN, MOST_UNLIKE, collect_rows, list_contents
from ddp_audit.process.findings import Finding
from ddp_audit.records import Audit, Fields, RankRecord

_FEWEST_PAIRS = 20
_MOST_EQUAL = 0.3
_MOST_TARGETS = 2.0
"""Pairs per id: a hash gives some texts the same id in one process and not in another."""
_FEWEST_REPEATS = 2.0
_FEWEST_IDS = 8
_FEWEST_ROWS = 20
_FEWEST_CUT = 3
_FEW_OTHERS = 0.05
_FEWEST_PER_PLACE = 1.5
"""Classes at a place of a batch, on average: what is always the same there is the place itself, as of pairs."""


@question(
    "Same ids for the same text",
    "Does a row of the data become the same token ids, with the same class, on every rank, and in every cell?",
    WRONG,
    {
        "ids_renamed": "Each process has a vocabulary of its own: id {id} on {process} is {other_id} on "
        "{other_process}",
        "ids_cut": "Ranks read unlike texts: {process} has at most {most} ids of a row, {other_process} {other_most}",
        "classes_renamed": "Each rank numbers the classes itself: class {class} of {baseline} is {number} on rank "
        "{rank} and {other_number} on rank {other_rank}",
        "classes_of_other_rows": "Rank {rank} learns classes that are not those of its rows: {share:percent} are other "
        "ones than in {baseline}",
    },
    "tokenise alike in every process; build the vocabulary, or the numbers of classes, once and save it, sort names "
    "before you number them, or use a digest such as zlib.crc32: Python's own hash() of a text, and so the order of a "
    "set, is another one in every process, unless PYTHONHASHSEED is set",
)
def same_ids(audit: Audit, cell: str) -> Finding | None:
    """Compare the first ids of rows that two processes were fed, those of the cell and of the baseline, and classes."""
    classes = _find_other_classes(audit, cell)
    if classes is not None and classes.outcome == "failed":
        return classes
    base = audit.ranks(audit.baseline) if cell != audit.baseline else []
    others = [(f"{audit.baseline} rank {item.rank}", item) for item in base]
    mine = [(f"rank {item.rank}", item) for item in audit.ranks(cell)]
    if len(mine) + len(others) < 2 or has_no_integers(audit, cell):
        return classes
    num_rows, unclear = 0, False
    for at, (name, rank) in enumerate(mine):
        for other_name, other in [*others, *mine[:at]]:
            if cut := _find_cut(cell, (name, _collect(rank, "lengths")), (other_name, _collect(other, "lengths"))):
                return cut
            heads, its = _collect(rank, "heads"), _collect(other, "heads")
            common = [key for key in heads if key in its]
            # The ids that stand at the same place of the same row.
            pairs = [pair for key in common for pair in zip(heads[key], its[key], strict=False) if pair != (0, 0)]
            if len(pairs) < _FEWEST_PAIRS:
                continue
            verdict = _judge_ids(pairs)
            if verdict == "renamed":
                entry, another = next(pair for pair in pairs if pair[0] != pair[1])
                text = (
                    "what is id {id} on {process} is id {other_id} on {other_process}, and so throughout, in "
                    "{rows_compared:plural row} that both were fed: each has a vocabulary of its own"
                ) + "; hashes of texts are salted in this process" * bool((rank.start or {}).get("is_hash_salted"))
                about = {"id": entry, "process": name, "other_id": another, "other_process": other_name}
                return fail(cell, "ids_renamed", text, rows_compared=len(common), **about)
            num_rows += len(common)
            unclear |= verdict == "other"
    if classes is not None:
        return classes
    if unclear:
        return make_unobservable(cell, "other_ids", "the same rows hold other ids, as where they are changed at random")
    if not num_rows:
        # Rows that are known by their content alone, and hold what a row of the baseline holds.
        of_base, *of_ranks = (
            set().union(*map(list_contents, ranks)) for ranks in (base, *([rank] for rank in audit.ranks(cell)))
        )
        same = [len(rows & of_base) for rows in of_ranks]
        least = [max(_FEWEST_ROWS, (1 - MOST_UNLIKE) * len(rows)) for rows in of_ranks]
        if any(map(lt, same, least)):
            text = "no row of token ids with a known index was seen by two processes"
            return make_unobservable(cell, "no_row_seen_twice", text)
        num_rows = sum(same)
    return succeed(
        cell, "{rows_compared:plural row} that two processes were fed hold the same ids", rows_compared=num_rows
    )


def _collect(rank: RankRecord, name: str) -> dict[str, Any]:
    """Return row -> what a field of the micro-batches holds of it: `heads`, its first ids, or `lengths`."""
    return dict(reversed(_list_known([micro for _, micro in rank.micros()], name)))


def _list_known(micros: list[Fields], name: str) -> list[tuple[str, Any]]:
    """Return (row, what a field holds of it) whenever a row with an index was fed."""
    return [
        (f"{micro.get('loader')}#{index}", value) for micro in micros
        for index, value in zip(micro.get("ids") or [], micro.get(name) or [], strict=False)
    ]  # fmt: skip


def _find_other_classes(audit: Audit, cell: str) -> Finding | None:
    """Return what is found of ranks whose rows have classes unlike each other's; None where it is nothing.

    Each has rows of its own: the baseline says which of them are of one class. Numbers that all ranks give it alike are
    as good as the baseline's.
    """
    of_base = audit.ranks(audit.baseline)
    base, rows = dict(chain(*map(_list_classes, of_base))), _list_whole(of_base)
    numbered: dict[int, tuple[int, int]] = {}
    apart: list[tuple[RankRecord, float]] = []
    is_right_on_another = False
    for rank in audit.ranks(cell):
        pairs = [(base[row], number) for row, number in dict(_list_classes(rank)).items() if row in base]
        renamed, num_other = dict(pairs), sum(its != number for its, number in pairs)
        if len(pairs) < _FEWEST_PAIRS:
            continue
        is_right_on_another |= num_other <= _FEW_OTHERS * len(pairs)
        if len({*renamed.values()}) < len({*pairs}) or len(pairs) < _FEWEST_REPEATS * len(renamed):
            # Not one for one.
            if num_other > MOST_UNLIKE * len(pairs):
                apart.append((rank, num_other / len(pairs)))
                continue
            renamed = {its: its for its in renamed}
        for its, number in renamed.items():
            other, other_number = numbered.setdefault(its, (rank.rank, number))
            if number != other_number:
                text = (
                    "rows of class {class} in {baseline} are of class {number} on rank {rank}, and of class "
                    "{other_number} on rank {other_rank}"
                )
                about = {"class": its, "rank": rank.rank, "other_rank": other, "baseline": audit.baseline}
                return fail(cell, "classes_renamed", text, number=number, other_number=other_number, **about)
    for rank, share in apart:
        every = _list_classes(rank)
        num_again = len(every) - len(dict(every))
        if len({*every}) > len(dict(every)):
            # They change at random.
            continue
        text = "{share:percent} of the rows that rank {rank} shares with {baseline} have another class there"
        about = {"rank": rank.rank, "share": share, "baseline": audit.baseline}
        is_same_data = len(_list_whole([rank]) & rows) >= _FEWEST_PAIRS
        if num_again < FEWEST_AGAIN or not is_same_data or not is_right_on_another:
            return make_unobservable(cell, "other_classes", text, **about)
        return fail(cell, "classes_of_other_rows", text + ", though they hold the same, and keep it", **about)
    return None


def _list_whole(ranks: Ranks) -> set[tuple[str, str]]:
    """Return (index, digest of the content) of each row of which both are known."""
    return {row for rank in ranks for row in collect_rows(rank.steps, by_content=False) if all(row)}


def _list_classes(rank: RankRecord) -> list[tuple[str, int]]:
    """Return (row, its class) whenever one was fed; nothing where that is its place in the batch."""
    micros = [micro for _, micro in rank.micros() if micro.get("num_losses") == 1 and micro.get("classes")]
    places = {place for micro in micros for place in enumerate(micro["classes"])}
    longest = max((len(micro["classes"]) for micro in micros), default=0)
    if len(places) < _FEWEST_PER_PLACE * longest:
        return []
    return _list_known(micros, "classes")


def _find_cut(cell: str, *both: tuple[str, dict[str, int]]) -> Finding | None:
    """Return the finding of processes of which one has every row as long as the other, up to a length where all end."""
    (mine, lengths), (theirs, its) = both
    pairs = [(length, its[key]) for key, length in lengths.items() if key in its]
    here, there = (max((pair[at] for pair in pairs), default=0) for at in (0, 1))
    cut, limit = sum(item != other for item, other in pairs), min(here, there)
    if cut < _FEWEST_CUT or any(min(item, limit) != min(other, limit) for item, other in pairs):
        return None
    names = dict(zip(("process", "other_process"), (mine, theirs) if here < there else (theirs, mine), strict=True))
    text = (
        "{rows_cut} of {rows_compared:plural row} that both were fed are cut: {process} has at most {most} ids of a "
        "row, {other_process} up to {other_most}"
    )
    numbers = {"rows_cut": cut, "rows_compared": len(pairs), "most": limit, "other_most": max(here, there)}
    return fail(cell, "ids_cut", text, **numbers, **names)


def _judge_ids(every: list[tuple[int, int]]) -> str:
    """Return "same", "renamed" where each id stands for another one throughout, or "other"."""
    different = set(every)
    if sum(item == other for item, other in different) > _MOST_EQUAL * len(different):
        return "same"
    num_ids = len({item for item, _ in different})
    is_throughout = len(different) <= _MOST_TARGETS * num_ids and len(every) >= _FEWEST_REPEATS * len(different)
    return "renamed" if is_throughout and num_ids >= _FEWEST_IDS else "other"
