"""Do all cells learn from the same rows?"""

from ddp_audit.evidence import (
    are_contents_fixed,
    count_samples,
    do_contents_differ,
    list_first_pass,
    list_rows,
    make_unobservable,
)
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_failed_finding, make_finding
from ddp_audit.process.wording import explain

NAME = "Same rows as the baseline"
QUESTION = "Does a pass over the data learn from the rows that the baseline's learns from?"
CLASS = "unlike cells"
SAYS = {
    "own_data": "Each process has a data set of its own: the same index is another row in {cell} than in {baseline}",
    "other_rows": "The cells learn from other rows: {not_in_both:,} are not both in {cell} and in {baseline}",
}
REMEDY = "seed the sampler alike in every cell, and spread the same rows over the ranks"

_MOSTLY = 0.95
_MOST_OTHER = 0.02
"""What is left over at the end of a pass may be dropped, or made up for by repeated rows."""


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the rows of the first pass of all ranks with the baseline's."""
    rows, of_base = (_collect_rows(audit, name) for name in (cell, audit.baseline))
    if rows is None or of_base is None:
        return make_unobservable(cell, "rows_unknown", "which rows were fed in a whole pass over the data is not known")
    mine, base = ({index or content for index, content in every} for every in (rows, of_base))
    other = mine ^ base
    most = max(_MOST_OTHER * len(base), 2 * audit.request.cells[cell])
    if mine < base or base < mine:
        # What is too little for a whole batch is dropped, if the loader is told so.
        most = max(most, *(max(count_samples(audit.ranks(name)) or [0]) - 1 for name in (cell, audit.baseline)))
    is_wrong = len(other) > most
    differ = not is_wrong and do_contents_differ(rows, of_base, counts_few=audit.device == "cpu")
    is_fixed = are_contents_fixed(audit.ranks(cell)) if differ else None
    if is_fixed:
        told = explain(
            "own_data",
            "{cell}: rows of an index hold something else than in {baseline}, and always the same in a process: "
            "each has a data set of its own",
            cell=cell, baseline=audit.baseline,
        )  # fmt: skip
        return make_failed_finding(told)
    if differ and is_fixed is None:
        return make_unobservable(
            cell,
            "other_contents",
            "the same indices as in {baseline} hold other contents: rows changed at random, in another order, or of "
            "another data set",
            baseline=audit.baseline,
        )
    told = explain(
        "other_rows" if is_wrong else "passed",
        "{cell}: its first pass learned from {rows:,} different rows, that of {baseline} from {rows_of_baseline:,}; "
        "{not_in_both:,} of them are not in both"
        if is_wrong
        else "{cell}: the first pass learned from the baseline's {rows_of_baseline:,} rows{but}",
        cell=cell, rows=len(mine), baseline=audit.baseline, rows_of_baseline=len(base), not_in_both=len(other),
        but=f", but for {len(other):,} that are left over at its end" * bool(other)
        + ", which every pass changes at random" * differ,
    )  # fmt: skip
    return make_finding([told] * is_wrong, told)


def _collect_rows(audit: Audit, cell: str) -> list[tuple[str, str]] | None:
    """Return the rows of the first pass of all ranks, as list_rows does.

    None if not all are known, or some come more than once, as where they are drawn with replacement.
    """
    every: list[tuple[str, str]] = []
    for rank in audit.ranks(cell):
        steps, is_whole = list_first_pass(rank)
        if not is_whole:
            return None
        for step in steps:
            fed = [micro for micro in step["micros"] if micro.get("loader") is not None]
            rows = list_rows({**step, "micros": fed})
            if rows is None:
                return None
            every += rows
    different = {index or content for index, content in every}
    return every if len(different) >= _MOSTLY * len(every) or _is_shared(audit, cell) else None


def _is_shared(audit: Audit, cell: str) -> bool:
    """Return whether no single rank meets a row twice: several ranks then meet the same ones."""
    for rank in audit.ranks(cell):
        rows = [row for step in list_first_pass(rank)[0] for row in list_rows(step) or []]
        if len(set(rows)) < _MOSTLY * len(rows):
            return False
    return True
