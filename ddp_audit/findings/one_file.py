"""Does each run write its results into files of its own?"""

from pathlib import Path

from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain
from ddp_audit.rank_record import RankRecord

NAME = "A file of its own for every run"
QUESTION = "Is no file of results appended to by several ranks, or by the runs of several cells?"
CLASS = "hygiene"
SAYS = {
    "appended_by_ranks": "Several ranks append to one file: {path}",
    "appended_by_cells": "Several cells append to one file: {path}",
}
REMEDY = "give each run a folder of its own ({cell} in SCRIPT stands for the cell's name), and let rank 0 alone write"

_RESULTS = {".csv", ".tsv", ".json", ".jsonl", ".ndjson"}


def find(audit: Audit, cell: str) -> Finding | None:
    """Look for files of results that were opened to be appended to, and by whom."""
    problems = []
    of_ranks = {rank.rank: _list_appended(rank) for rank in audit.ranks(cell)}
    for path in sorted(set().union(*of_ranks.values())):
        ranks = [rank for rank, paths in of_ranks.items() if path in paths]
        if len(ranks) > 1:
            problems.append(
                explain(
                    "appended_by_ranks", "{cell}: ranks {ranks} append to {path}", cell=cell, ranks=ranks, path=path
                )
            )
        if earlier := _find_earlier(audit, cell, path):
            problems.append(
                explain(
                    "appended_by_cells", "{cell} appends to {path}, which {earlier} appends to, too",
                    cell=cell, path=path, earlier=earlier,
                )
            )  # fmt: skip
    num_files = len(set().union(*of_ranks.values()))
    return make_finding(
        problems,
        "{cell}: no file of results was appended to by two ranks or two cells",
            cell=cell, files_appended_to=num_files,
    )  # fmt: skip


def _list_appended(rank: RankRecord) -> set[str]:
    """Return the files of results that the rank appended to and had not made anew."""
    found: set[str] = set()
    fresh: set[str] = set()
    for one in rank.lines.get("open", []):
        if one["mode"] in "wx":
            fresh.add(one["path"])
        elif one["mode"] == "a" and one["path"] not in fresh and Path(one["path"]).suffix in _RESULTS:
            found.add(one["path"])
    return found


def _find_earlier(audit: Audit, cell: str, path: str) -> str | None:
    for other in audit.request.cells:
        if other == cell:
            return None
        if any(path in _list_appended(rank) for rank in audit.ranks(other)):
            return other
    return None
