"""Does every rank learn from rows of its own, or all of them from the same?"""

from tasks.auditing.evidence import find_nothing_seen, list_first_pass, list_rows, make_unobservable
from tasks.auditing.launched import Audit
from tasks.process import wording
from tasks.records.gate import Finding, make_finding

NAME = "Rows of its own for every rank"
QUESTION = "Does each rank learn from rows that no other rank learns from in that pass over the data?"
REMEDY = "give the loader a DistributedSampler(dataset), and call its set_epoch(epoch) before every pass"

_MOST_SHARED = 0.5
"""DistributedSampler repeats up to N - 1 rows of a pass, so that every rank has as many: of 2 rows, half."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the rows of the ranks in the first pass over the data."""
    if audit.request.cells[cell] == 1:
        return None
    if nothing := find_nothing_seen(audit, cell):
        return nothing
    rows_of_ranks: list[list[tuple[str, str]]] = []
    for rank in audit.ranks(cell):
        steps, _ = list_first_pass(rank)
        found = [list_rows(step) for step in steps]
        rows = [row for one in found if one is not None for row in one]
        if not rows or any(one is None for one in found):
            return make_unobservable(cell, f"which rows rank {rank.rank} was fed is not known")
        rows_of_ranks.append(rows)
    return _judge(cell, rows_of_ranks)


def _judge(cell: str, rows_of_ranks: list[list[tuple[str, str]]]) -> Finding:
    first = rows_of_ranks[0]
    if any(len(set(rows)) < 0.95 * len(rows) for rows in rows_of_ranks):
        return make_unobservable(
            cell, "rows come more than once on one rank itself: drawn with replacement, or repeated"
        )
    shared = [len(set(first) & set(rows)) / min(len(first), len(rows)) for rows in rows_of_ranks[1:]]
    indices = [{index for index, _ in rows if index} for rows in rows_of_ranks]
    of_index = [len(indices[0] & one) / min(len(indices[0]), len(one)) for one in indices[1:] if indices[0] and one]
    num_rows = sum(len(rows) for rows in rows_of_ranks)
    num_different = len(set().union(*map(set, rows_of_ranks)))
    if max(shared) <= _MOST_SHARED < max(of_index, default=0.0):
        return make_unobservable(
            cell,
            "the ranks read the same indices with other contents: rows changed at random, or data sets of their own",
        )
    problems = [
        f"{cell}: rank 0 and rank {rank} learned from the same rows, {wording.format_percent(share)} of them: of "
        f"{num_rows:,} rows that the ranks learned from in the first pass {num_different:,} were different"
        for rank, share in enumerate(shared, start=1)
        if share > _MOST_SHARED
    ]
    found = make_finding(
        problems,
        otherwise=f"{cell}: {num_different:,} different rows among the {num_rows:,} that the ranks learned from in the "
        "first pass",
        numbers={"rows": num_rows, "different_rows": num_different, "most_shared": max(shared)},
    )
    if not problems:
        return found
    figure = (
        f"counted in different rows, {cell} did {wording.format_percent(num_different / num_rows)} of the work that "
        "its throughput claims"
    )
    return Finding(found.verdict, found.compared, found.numbers, figure)
