"""Does a run that was told to go on from a file do so?"""

import os
import re

from ddp_audit.evidence import make_unobservable
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain

NAME = "Begins from the weights it was told to"
QUESTION = "Where the script is told to resume from a file, does it hold that file's weights at the first step?"
CLASS = "wrong training"
SAYS = {
    "file_missing": "It begins anew though it was told to go on: {name}={path} is no file",
    "file_not_used": "It begins anew though it was told to go on: nothing of {name}={path} is held at the first step",
}
REMEDY = "end with an error where the file to go on from is missing or does not fit; don't begin anew in silence"

_RESUMES = re.compile(r"resume|restore|init_from|load_from", re.IGNORECASE)
_PATH = re.compile(r"/|\.(pt|pth|bin|ckpt|safetensors|tar)$")


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the first step's parameters with what was read from the file that the script was told to go on from."""
    found = [
        (rank, *asked)
        for rank in audit.ranks(cell)
        for asked in [
            (name, value, bool(line["are_there"].get(name)))
            for line in rank.lines.get("asked", [])[:1]
            for name, value in line["names"].items()
            if _RESUMES.search(name) and isinstance(value, str) and _PATH.search(value)
        ]
    ]
    if not found:
        # Nothing was asked for.
        return None
    problems, held = [], 0
    for rank, name, path, is_there in found:
        asked = {"name": name, "path": path, "rank": rank.rank}
        if not is_there:
            if any(
                one["mode"] in "wx" and one["path"].endswith(os.path.normpath(path))
                for one in rank.lines.get("open", [])
            ):
                return make_unobservable(
                    cell,
                    "written_by_itself",
                    "{name}={path} is what the script writes itself: it may begin where none is",
                    **asked,
                )
            problems.append(
                explain(
                    "file_missing",
                    "{cell}: {name}={path} is no file, and rank {rank} trained {steps} steps all the same",
                    cell=cell, steps=len(rank.steps), **asked,
                )
            )  # fmt: skip
            continue
        loaded = next(
            (one for one in rank.lines.get("loaded", []) if one["path"].endswith(os.path.basename(path))), None
        )
        if loaded is None:
            return make_unobservable(
                cell,
                "file_not_read",
                "{name}={path} was not read by torch.load or safetensors on rank {rank}",
                **asked,
            )
        if not loaded["num_held"]:
            problems.append(
                explain(
                    "file_not_used",
                    "{cell}: {name}={path} was read, and at the first step rank {rank} holds none of its tensors (0 of "
                    "{tensors})",
                    cell=cell, tensors=loaded["num_parameters"], **asked,
                )
            )  # fmt: skip
        held += bool(loaded["num_held"])
    return make_finding(
        problems,
        "{cell}: at the first step {ranks_that_hold_them:plural rank} hold tensors of the file to go on from",
            cell=cell, ranks=len(found), ranks_that_hold_them=held,
    )  # fmt: skip
