"""The pipeline as DVC sees it, asked without Prefect: what is out of date, and to bring one stage up to date."""

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import networkx
from dvc.exceptions import DvcException
from dvc.repo import Repo

from flows.child import make_environment, run_child
from flows.output import DVC_CHATTER
from tasks.process.failure import FREE_SPACE, STORAGE_ERRORS, ExitCode, StageError
from tasks.process.logs import SILENT
from tasks.process.stopping import STARTER
from tasks.reporting.provenance import STAGE_SECONDS

DVC_LOCK = Path("dvc.lock")
_ALWAYS = ["always changed"]
_CACHED = "cached, nothing has changed"
_UNCHANGED = "done, with the same result as before"
_NOT_KNOWN_YET = "some for the first time (`measure` will tell how long the trainings take)"
_MAX_MESSAGE_CHARACTERS = 500
_LOCKED = ("Unable to acquire lock", "is busy, it is being blocked by")
"""What DVC says of another one at work in this folder."""


class StageFailed(StageError):  # noqa: N818 - what happened, not a kind of error
    """A stage ended with something else than 0; the message is its own one line."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code if exit_code >= 0 else 128 - exit_code


def list_stages(cells: Iterable[str]) -> list[str]:
    """Return the stages of dvc.yaml in the order in which the flow runs them."""
    trainings = [f"train@{cell}" for cell in cells]
    return ["fingerprint", "download", "slice", "measure", *trainings, "evaluate", "report", "upload"]


def list_upstream() -> dict[str, list[str]]:
    """Return for each stage those right before it in the graph of dvc.yaml; raises DvcException as DVC does."""
    with Repo() as repo:
        graph = networkx.transitive_reduction(repo.index.graph)
        return {stage.addressing: [successor.addressing for successor in graph.successors(stage)] for stage in graph}


def describe_plan(stages: list[str], changes: Mapping[str, list[str]]) -> str:
    """Return how many stages will run, from which on, and how long they took last time; without changes, all of them.

    What follows a stage that runs may turn out to have nothing to do.
    """
    if changes and _is_cached(changes):
        return f"{len(stages)} stages, in none of which anything has changed so far"
    first = next(stage for stage in stages if changes.get(stage) not in ([], _ALWAYS))
    to_run = stages[stages.index(first) :]
    known = _read_seconds()
    span = timedelta(seconds=round(sum(known.get(stage, 0.0) for stage in to_run)))
    end = datetime.now() + span
    last_time = f"which took {span} last time (h:min:s), so until {end:%a %H:%M}"
    last_time = last_time if set(to_run) <= known.keys() else _NOT_KNOWN_YET
    return f"{len(to_run)} of {len(stages)} stages to run, {last_time}: {', '.join(to_run)}"


def remember_seconds(stage: str, seconds: float) -> None:
    """Keep how long the stage took, for the next plan."""
    STAGE_SECONDS.parent.mkdir(exist_ok=True)
    STAGE_SECONDS.write_text(json.dumps({**_read_seconds(), stage: round(seconds, 1)}) + "\n", encoding="utf-8")


def _read_seconds() -> dict[str, float]:
    """Return what is known; nothing where the file is not whole, which the next stage mends."""
    with contextlib.suppress(OSError, ValueError):
        return {stage: float(seconds) for stage, seconds in json.loads(STAGE_SECONDS.read_bytes()).items()}
    return {}


def list_changes(*stages: str) -> dict[str, list[str]]:
    """Return for each stage, all if none is named, what DVC finds changed, in words; nothing where it is up to date.

    Raises DvcException as DVC does.
    """
    # What it has to show and to warn of comes again from the child, if one is needed.
    logging.getLogger("dvc").setLevel(logging.CRITICAL)
    with Repo() as repo, repo.lock:
        collected = [repo.stage.collect(stage)[0] for stage in stages] or repo.index.stages
        return {stage.addressing: _list_stage_changes(stage) for stage in collected}


def reproduce(*stages: str, environment: Mapping[str, str], on_output: Callable[[bytes], None]) -> int:
    """Let DVC restore or run the stages in turn, up to one that fails; return its exit code.

    Their commands get `environment` on top of ours.
    """
    return run_child(
        [sys.executable, "-m", "flows.child", str(os.getpid()), "repro", "--single-item", *stages],
        env={**make_environment(sys.executable), STARTER: str(os.getpid()), **environment},
        on_output=on_output,
    )


def explain_failure(lines: Iterable[str], dvc_code: int) -> tuple[str, int]:
    """Return the stage's one line and its exit code, read from the last lines that DVC and it have written."""
    lines = list(lines)
    start = max((number for number, line in enumerate(lines) if line.startswith("ERROR:")), default=len(lines))
    complaint = " ".join(lines[start:]).removeprefix("ERROR:").strip()
    exited = re.search(r"exited with (-?\d+)$", complaint)
    if exited is None:
        return explain_complaint(complaint or f"DVC ended with {dvc_code}")
    said = [line for line in lines[:start] if not line.startswith((*DVC_CHATTER, "WARNING:"))]
    return said[-1].strip() if said else f"its command exited with {exited[1]}", int(exited[1])


def explain_complaint(complaint: str) -> tuple[str, int]:
    """Return as one line, and an exit code, what DVC or the system says that is no stage's failure."""
    message = " ".join(complaint.split())[:_MAX_MESSAGE_CHARACTERS]
    if any(f"[Errno {number}]" in complaint for number in STORAGE_ERRORS):
        return f"{message}; {FREE_SPACE}", ExitCode.RESOURCES
    return message, ExitCode.RESOURCES if any(words in complaint for words in _LOCKED) else 1


def find_changes() -> dict[str, list[str]]:
    """Return what `list_changes` says of every stage; {} where nothing has run yet, or DVC cannot tell."""
    if not DVC_LOCK.exists():
        return {}
    with contextlib.suppress(DvcException):  # the flow meets it again, and says what it means
        return list_changes()
    return {}


def find_cached(changes: Mapping[str, list[str]]) -> dict[str, str]:
    """Return each stage with what was found, if none has anything to do once those that always run have; else {}."""
    always = [stage for stage, reasons in changes.items() if reasons == _ALWAYS]
    if not changes or not _is_cached(changes):
        return {}
    with contextlib.suppress(DvcException):
        if not always or reproduce(*always, environment={SILENT: "1"}, on_output=lambda _: None) == 0:
            after = list_changes()
            if _is_cached(after):
                return {stage: _UNCHANGED if reasons else _CACHED for stage, reasons in after.items()}
    return {}


def _is_cached(reasons: Mapping[str, list[str]]) -> bool:
    return all(words in ([], _ALWAYS) for words in reasons.values())


def _list_stage_changes(stage: Any) -> list[str]:
    status: list[Any] = stage.status().get(stage.addressing, [])
    if status and f"\n  {stage.addressing}:" not in read_lock().decode():
        return ["has not run here before"]
    changes = []
    for entry in status:
        if isinstance(entry, str):
            changes.append("its command" if entry == "changed checksum" else entry)
            continue
        for files in entry.values():
            for file, change in files.items():
                changes.append(f"{file} ({', '.join(change) if isinstance(change, dict) else change})")
    return changes


def read_lock() -> bytes:
    """Return what dvc.lock holds, nothing where there is none."""
    return DVC_LOCK.read_bytes() if DVC_LOCK.exists() else b""
