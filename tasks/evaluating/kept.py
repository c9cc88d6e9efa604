"""What the stage `evaluate` found of a model, kept for the next run under the digest of all that it depends on."""

import importlib.metadata
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tasks.inputs.snapshot import Snapshot
from tasks.machine.facts import PACKAGES
from tasks.records.stage_file import StageFile
from tasks.store.kept import fill_folder, keep, read_kept
from training.process.files import digest_json

_log = logging.getLogger(__name__)

STORE = Path(".work/evaluation")
Found = TypeVar("Found", bound=StageFile)


def reuse_or_make(
    what: str, kind: type[Found], depends_on: dict[str, Any], make: Callable[[], Found], snapshot: Snapshot
) -> Found:
    """Return what was kept of the same dependencies, versions and environment, or make it; `what` is logged."""
    versions = {name: importlib.metadata.version(name) for name in (*PACKAGES, "tokenizers")}
    folder = STORE / digest_json({**depends_on, "versions": versions, "environment": snapshot.environment})
    if kept := read_kept(folder, kind):
        _log.info("%s before, on these rows and with this code", what)
        return kept
    found = make()
    snapshot.require_unchanged()
    with fill_folder(folder) as new:
        keep(found, new)
    return found
