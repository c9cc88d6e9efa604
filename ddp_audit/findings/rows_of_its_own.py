"""Does every rank learn from rows of its own, or all of them from the same?"""

from dataclasses import replace

from ddp_audit.evidence import (
    do_contents_differ,
    list_first_pass,
    list_later_passes,
    list_rows,
    make_unobservable,
)
from ddp_audit.launched import Audit
from ddp_audit.process import wording
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import Fields

NAME = "Rows of its own for every rank"
QUESTION = "Does each rank learn from rows that no other rank learns from in that pass over the data?"
CLASS = "wrong training"
SAYS = {
    "same_rows": "The ranks train on the same rows: of {rows:,} that {cell} was fed {different_rows:,} are different",
}
REMEDY = "give the loader a DistributedSampler(dataset), and call its set_epoch(epoch) before every pass"

_MOST_SHARED = 0.5
"""DistributedSampler repeats up to N - 1 rows of a pass, so that every rank has as many: of 2 rows, half."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the rows of the ranks in the first pass over the data, and their indices in the later ones."""
    rows_of_ranks = []
    for rank in audit.ranks(cell):
        rows = _collect_rows(list_first_pass(rank)[0])
        if not rows:
            return make_unobservable(
                cell, "rows_unknown", "which rows rank {rank} was fed is not known", rank=rank.rank
            )
        rows_of_ranks.append(rows)
    counts_few = audit.device == "cpu"
    first = _judge(cell, rows_of_ranks, where="the first pass", counts_few=counts_few)
    if first.verdict != "passed":
        return first
    passes = [list_later_passes(rank) for rank in audit.ranks(cell)]
    num_right = 0
    for key in passes[0]:
        later = [_collect_rows(one.get(key, [])) for one in passes]
        if not all(later):
            continue
        begin = passes[0][key][0]["step"]
        found = _judge(cell, later, where=f"a later pass, from step {begin:,} on,", counts_few=counts_few)
        if found.verdict == "failed":
            return found
        num_right += found.verdict == "passed"
    if not passes[0]:
        return first
    told = f"{first.compared}; the same holds of {num_right} of the {len(passes[0])} passes after it"
    return replace(first, compared=told, numbers={**first.numbers, "later_passes": num_right})


def _collect_rows(steps: list[Fields]) -> list[tuple[str, str]]:
    """Return the rows of all steps; none where those of one are not known."""
    found = [list_rows(step) for step in steps]
    return [] if any(one is None for one in found) else [row for one in found if one is not None for row in one]


def _judge(cell: str, rows_of_ranks: list[list[tuple[str, str]]], *, where: str, counts_few: bool) -> Finding:
    # Those with an index are known by it; of many of them the content was not looked at.
    names = [[index or content for index, content in rows] for rows in rows_of_ranks]
    if any(len(set(rows)) < 0.95 * len(rows) for rows in names):
        return make_unobservable(
            cell, "rows_repeated", "rows come more than once on one rank itself: drawn with replacement, or repeated"
        )
    shared = [len(set(names[0]) & set(rows)) / min(len(names[0]), len(rows)) for rows in names[1:]]
    num_rows, num_different = sum(map(len, names)), len(set().union(*names))
    if max(shared) > _MOST_SHARED and any(
        do_contents_differ(rows_of_ranks[0], other, counts_few=counts_few) for other in rows_of_ranks[1:]
    ):
        return make_unobservable(
            cell,
            "other_contents",
            "the ranks read the same indices with other contents: rows changed at random, or data sets of their own",
        )
    numbers = {"cell": cell, "rows": num_rows, "different_rows": num_different, "pass": where}
    problems = [
        explain(
            "same_rows",
            "{cell}: rank 0 and rank {rank} learned from the same rows, {share:percent} of them: of {rows:,} rows that "
            "the ranks learned from in {pass} {different_rows:,} were different",
            **numbers,
            rank=rank,
            share=share,
        )
        for rank, share in enumerate(shared, start=1)
        if share > _MOST_SHARED
    ]
    found = make_finding(
        problems,
        "{cell}: {different_rows:,} different rows among the {rows:,} that the ranks learned from in {pass}",
        **numbers,
        most_shared=max(shared),
    )
    if not problems:
        return found
    figure = (
        f"counted in different rows, {cell} did {wording.format_percent(num_different / num_rows)} of the work that "
        "its throughput claims"
    )
    return replace(found, true_figure=figure)
