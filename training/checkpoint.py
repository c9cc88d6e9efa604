"""Finished segments and partial checkpoints in the work folder: whole or absent, verified before every use."""

import contextlib
import dataclasses
import json
import logging
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.config import SegmentConfig
from training.events import EventStream
from training.failure import BadCheckpointError, UnwritableError
from training.receipt import (
    RECEIPT,
    discard,
    problem_with,
    reasons_set_aside,
    remove_unfinished,
    sealed_folder,
    set_aside,
)
from training.record import Counters, SegmentRecord
from training.replica import Replica
from training.weights import differences, load_tensors, refuse, save_tensors

_log = logging.getLogger(__name__)

_PARTIALS_KEPT = 2
_STATE = "state.pt"
_PARTIAL_WEIGHTS = "weights.pt"


class CheckpointStore:
    """`segments/<fingerprint>/` and `partial/<fingerprint>/step-<n>/`; only rank 0 writes and verifies.

    A name is only ever given to a folder that is whole and on disk, so the names alone say which is the newest: there
    is no pointer that could disagree with them. What another number of ranks saved is taken up in exact mode only,
    where the weights do not depend on it.
    """

    def __init__(self, work_dir: Path, *, model_name: str, world_size: int, exact: bool, events: EventStream) -> None:
        self._work_dir = work_dir
        self._segments = work_dir / "segments"
        self._partials = work_dir / "partial"
        self._model_name = model_name
        self._exact = exact
        self._events = events
        self._facts: dict[str, Any] = {
            "world_size": world_size,
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        }

    def clear_unfinished(self) -> None:
        """Remove what a crash in mid-writing has left."""
        for parent in (self._work_dir, self._segments, self._partials, *self._partials.glob("*")):
            remove_unfinished(parent)

    def finished(self, segment: SegmentConfig, *, start_checksum: str | None) -> dict[str, Any] | None:
        """Return the segment.json of a finished segment that verifies and begins where its predecessor ended.

        One that does not is set aside with a warning, and None returned as for one that was never trained. Raises
        BadCheckpointError for one of another number of ranks.
        """
        folder = self._segments / segment.fingerprint
        if not folder.exists():
            return None
        problem = problem_with(folder, fingerprint=segment.fingerprint)
        if problem is None:
            self._refuse_other_world_size(folder)
            facts: dict[str, Any] = json.loads((folder / "segment.json").read_bytes())
            if start_checksum in (None, facts["start_checksum"]):
                # They are still there if the launch that finished the segment died before it had dropped them.
                discard(self._partials / segment.fingerprint)
                return facts
            problem = f"it began from weights {facts['start_checksum']}, its predecessor ended with {start_checksum}"
        self._set_aside(folder, problem)
        return None

    def newest_partial(self, segment: SegmentConfig, *, start_checksum: str | None) -> Path | None:
        """Return the newest partial checkpoint that verifies; newer ones that do not are set aside with a warning.

        Raises BadCheckpointError for one of another number of ranks.
        """
        for folder in reversed(self._partials_of(segment)):
            problem = problem_with(folder, fingerprint=segment.fingerprint)
            if problem is None:
                began = json.loads((folder / RECEIPT).read_bytes())["start_checksum"]
                if start_checksum in (None, began):
                    self._refuse_other_world_size(folder)
                    return folder
                problem = f"its segment began from weights {began}, the predecessor now ends with {start_checksum}"
            self._set_aside(folder, problem)
        return None

    def load_finished(self, segment: SegmentConfig, replica: Replica, facts: dict[str, Any]) -> None:
        """Restore the state at the end of a segment.

        Raises BadCheckpointError if that cannot be done: training never begins from anything else instead.
        """
        folder = self._segments / segment.fingerprint
        _restore(replica, folder / self._weights_name(segment), folder / _STATE)
        wanted, got = facts["parameter_checksums"][0], replica.parameter_checksum()
        if got != wanted:
            raise BadCheckpointError(f"{folder}: loaded weights have checksum {got}, {wanted} were saved")

    def load_partial(self, folder: Path, replica: Replica, record: SegmentRecord) -> None:
        """Restore the state in mid-segment, and the segment's record up to there; BadCheckpointError if impossible."""
        state = _restore(replica, folder / _PARTIAL_WEIGHTS, folder / _STATE)
        try:
            record.counters = Counters(**state["counters"])
        except (KeyError, TypeError) as error:
            raise BadCheckpointError(f"{folder / _STATE}: no counters of a segment: {error}") from None
        record.counters.num_resumes += 1
        record.load(folder)

    def version_drift(self, folder: Path) -> list[str]:
        """Return what was another version when the folder was saved, loudly; numbers may then differ in their bits."""
        saved = json.loads((folder / RECEIPT).read_bytes())["versions"]
        ours: dict[str, str] = self._facts["versions"]
        drift = [f"{name} {saved.get(name)}, then {ours[name]}" for name in ours if saved.get(name) != ours[name]]
        if drift:
            _log.warning("%s was saved with other versions (%s): bits may differ", folder, "; ".join(drift))
        return drift

    def finished_folder(self, segment: SegmentConfig) -> Path:
        """Return where the segment stands once it is finished."""
        return self._segments / segment.fingerprint

    def save_partial(self, replica: Replica, record: SegmentRecord) -> Path:
        """Save the state in mid-segment durably, then drop all but the newest few; return its folder."""
        segment = record.segment
        destination = self._partials / segment.fingerprint / f"step-{record.counters.segment_step:08d}"
        if destination.exists():
            return destination
        with self._sealed(destination, replica, record) as folder:
            _write_state(folder, _PARTIAL_WEIGHTS, replica, record)
        for old in self._partials_of(segment)[:-_PARTIALS_KEPT]:
            discard(old)
        return destination

    def save_finished(self, replica: Replica, record: SegmentRecord, summarise: Any) -> dict[str, Any]:
        """Save the finished segment durably, then drop its partial checkpoints; return its segment.json.

        `summarise()` is asked for segment.json when the rest is written, so that it can tell how long that took.
        """
        segment = record.segment
        destination = self._segments / segment.fingerprint
        with self._sealed(destination, replica, record) as folder:
            _write_state(folder, self._weights_name(segment), replica, record)
            not_used = reasons_set_aside(destination.parent, destination.name)
            not_used += reasons_set_aside(self._partials / segment.fingerprint)
            summary: dict[str, Any] = {**summarise(), "checkpoints_not_used": not_used}
            (folder / "segment.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
        discard(self._partials / segment.fingerprint)
        return summary

    @contextlib.contextmanager
    def _sealed(self, destination: Path, replica: Replica, record: SegmentRecord) -> Iterator[Path]:
        facts = {**self._facts, "start_checksum": record.counters.start_checksum}
        try:
            with sealed_folder(destination, fingerprint=record.segment.fingerprint, facts=facts) as folder:
                yield folder
        except OSError as error:
            free = shutil.disk_usage(self._segments.parent).free
            raise UnwritableError(
                f"{destination}: {error.strerror}: a checkpoint needs {_num_bytes(replica):,} bytes, {free:,} are "
                "free; the one before it is whole: make room and run again"
            ) from None

    def _set_aside(self, folder: Path, problem: str) -> None:
        set_aside(folder, problem)
        self._events.send("checkpoint_not_used", folder=str(folder), problem=problem)

    def _refuse_other_world_size(self, folder: Path) -> None:
        saved, ours = json.loads((folder / RECEIPT).read_bytes())["world_size"], self._facts["world_size"]
        if saved != ours and not self._exact:
            raise BadCheckpointError(
                f"{folder}: saved by {saved} ranks, this run has {ours}; allowed: {saved} ranks, or exact: true, where "
                "weights do not depend on it"
            )

    def _weights_name(self, segment: SegmentConfig) -> str:
        return f"{self._model_name}_{segment.range}-epoch-{segment.epoch}.pt"

    def _partials_of(self, segment: SegmentConfig) -> list[Path]:
        parent = self._partials / segment.fingerprint
        return sorted(path for path in parent.glob("step-*") if path.name.removeprefix("step-").isdigit())


def _num_bytes(replica: Replica) -> int:
    """Return the bytes of a checkpoint's tensors, which are nearly all of it."""
    state = replica.state()["optimizer"]["state"].values()
    tensors = [*replica.weights().values(), *(value for moments in state for value in moments.values())]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _restore(replica: Replica, weights_file: Path, state_file: Path) -> dict[str, Any]:
    """Load both files, all or nothing; raises BadCheckpointError before any weight changes."""
    weights, state = load_tensors(weights_file), load_tensors(state_file)
    refuse(weights_file, differences(weights, replica.module.state_dict()))
    try:
        refuse(state_file, replica.state_differences(state))
        replica.load_state(state)
    except BadCheckpointError:
        raise
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise BadCheckpointError(f"{state_file}: not the state of this run: {type(error).__name__}: {error}") from None
    replica.module.load_state_dict(weights, strict=True)
    return state


def _write_state(folder: Path, weights_name: str, replica: Replica, record: SegmentRecord) -> None:
    save_tensors(replica.weights(), folder / weights_name)
    save_tensors({**replica.state(), "counters": dataclasses.asdict(record.counters)}, folder / _STATE)
    record.save(folder)
