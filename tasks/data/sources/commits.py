"""Which commit a branch or tag of the Hub stood for when first asked: the answer stays, so that re-runs agree."""

import json
import logging
import re
from pathlib import Path
from typing import Literal

from tasks.process.failure import DataError
from tasks.services import hub
from training.process.files import write_json

_log = logging.getLogger(__name__)

REVISIONS = Path(".work/download/revisions.json")


def pin_commit(repo_id: str, revision: str, *, kind: Literal["model", "dataset"]) -> str:
    """Return the commit (40 hex digits) of the revision; one more range never moves to another commit.

    A commit is its own answer. Delete .work/download/revisions.json to ask the Hub anew.
    """
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    key = f"{kind}:{repo_id}@{revision}"
    known = _read_known_commits()
    if key in known:
        _log.info("%s: stays at commit %s (delete %s to ask the Hub anew)", key, known[key], REVISIONS)
        return known[key]
    commit = hub.resolve_commit(repo_id, revision, kind=kind)
    write_json(REVISIONS, known | {key: commit})
    return commit


def _read_known_commits() -> dict[str, str]:
    if not REVISIONS.is_file():
        return {}
    try:
        known = json.loads(REVISIONS.read_text(encoding="utf-8"))
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(re.fullmatch(r"[0-9a-f]{40}", str(value)) for value in known.values()):
        raise DataError(f"{REVISIONS}: not a mapping of revisions to commits; delete it to ask the Hub anew")
    return known
