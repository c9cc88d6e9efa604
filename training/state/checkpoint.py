"""Finished segments and partial checkpoints in the work folder: whole or absent, verified before every use."""

import contextlib
import dataclasses
import json
import logging
import platform
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.config import SegmentConfig
from training.model.weights import load_tensors, require_no_differences, save_tensors
from training.process.distributed import Ranks
from training.process.events import EventStream
from training.process.failure import BadCheckpointError, UnwritableError
from training.record.segment import SegmentRecord
from training.record.segment_facts import SEGMENT_FILE, Counters, Exchanged, SegmentFacts
from training.state.receipt import (
    RECEIPT,
    STATE_FILE,
    discard,
    find_receipt_problem,
    list_set_aside,
    remove_unfinished,
    seal_folder,
    set_aside,
)
from training.step.snapshot import STATE, WEIGHTS, Digests, MisfitError, Part
from training.step.strategy import Strategy

_log = logging.getLogger(__name__)

_PARTIALS_KEPT = 2
_PARTIAL_WEIGHTS = "weights.pt"


class CheckpointStore:
    """`segments/<fingerprint>/` and `partial/<fingerprint>/step-<n>/`; all ranks give, rank 0 writes and verifies.

    A name is only ever given to a folder that is whole and on disk, so the names alone say which is the newest: there
    is no pointer that could disagree with them. What another number of ranks saved is taken up in exact mode only,
    where the weights do not depend on it.
    """

    def __init__(
        self, work_dir: Path, *, model_name: str, world_size: int, exact: bool, events: EventStream, may_lack: str = "-"
    ) -> None:
        """`may_lack`: files of a finished segment, as find_receipt_problem takes them."""
        self._work_dir = work_dir
        self._segments = work_dir / "segments"
        self._partials = work_dir / "partial"
        self._model_name = model_name
        self._exact = exact
        self._may_lack = may_lack
        self._events = events
        self._facts: dict[str, Any] = {
            "world_size": world_size,
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        }

    def clear_unfinished(self) -> None:
        """Remove what a crash in mid-writing has left."""
        for parent in (self._work_dir, self._segments, self._partials, *self._partials.glob("*")):
            remove_unfinished(parent)

    def find_finished(self, segment: SegmentConfig, *, start_checksum: str | None) -> dict[str, Any] | None:
        """Return the segment.json of a finished segment that verifies and begins where its predecessor ended.

        One that does not is set aside with a warning, and None returned as for one that was never trained. Raises
        BadCheckpointError for one of another number of ranks.
        """
        folder = self.locate_finished(segment)
        if not folder.exists():
            return None
        problem = find_receipt_problem(folder, fingerprint=segment.fingerprint, may_lack=self._may_lack)
        if problem is None:
            self._require_same_world_size(folder)
            facts: dict[str, Any] = json.loads((folder / SEGMENT_FILE).read_bytes())
            if start_checksum in (None, facts["start_checksum"]):
                # They are still there if the launch that finished the segment died before it had dropped them.
                discard(self._partials / segment.fingerprint)
                return facts
            problem = f"it began from weights {facts['start_checksum']}, its predecessor ended with {start_checksum}"
        self._set_aside(folder, problem)
        return None

    def find_newest_partial(self, segment: SegmentConfig, *, start_checksum: str | None) -> Path | None:
        """Return the newest partial checkpoint that verifies; newer ones that do not are set aside with a warning.

        Raises BadCheckpointError for one of another number of ranks.
        """
        for folder in reversed(self._list_partials(segment)):
            problem = find_receipt_problem(folder, fingerprint=segment.fingerprint)
            if problem is None:
                receipt = json.loads((folder / RECEIPT).read_bytes())
                began = receipt["start_checksum"]
                if start_checksum not in (None, began):
                    problem = f"its segment began from weights {began}, the predecessor now ends with {start_checksum}"
                elif "digests" not in receipt:
                    problem = "an earlier version saved it, without checksums of the state"
                else:
                    self._require_same_world_size(folder)
                    return folder
            self._set_aside(folder, problem)
        return None

    def load_finished(self, segment: SegmentConfig, strategy: Strategy, facts: dict[str, Any]) -> None:
        """Restore the state at the end of a segment; to be called by all ranks.

        Raises BadCheckpointError if that cannot be done: training never begins from anything else instead.
        """
        saved = Digests(facts["parameter_checksums"], facts["optimizer_checksums"])
        _restore(strategy, self.locate_finished(segment), self._make_weights_name(segment), saved)

    def load_partial(self, folder: Path, strategy: Strategy, record: SegmentRecord) -> None:
        """Restore the state in mid-segment, and the segment's record up to there; to be called by all ranks.

        Raises BadCheckpointError if that cannot be done.
        """
        saved = json.loads((folder / RECEIPT).read_bytes())["digests"]
        state = _restore(strategy, folder, _PARTIAL_WEIGHTS, Digests(**saved))
        try:
            counters = Counters(**state["counters"])
            counters.traffic = {kind: Exchanged(**item) for kind, item in state["counters"]["traffic"].items()}
            record.counters = counters
        except (KeyError, TypeError, AttributeError) as error:
            raise BadCheckpointError(f"{folder / STATE_FILE}: no counters of a segment: {error}") from None
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

    def locate_finished(self, segment: SegmentConfig) -> Path:
        """Return where the segment stands once it is finished."""
        return self._segments / segment.fingerprint

    def save_partial(self, strategy: Strategy, record: SegmentRecord, ranks: Ranks, digests: Digests) -> Path:
        """Save the state in mid-segment, of these digests, durably; drop all but the newest few; return its folder.

        To be called by all ranks; raises UnwritableError on all of them if there is no room.
        """
        segment = record.segment
        destination = self._partials / segment.fingerprint / f"step-{record.counters.num_steps:08d}"
        if ranks.ask_first_rank(destination.exists):
            return destination
        self._save(destination, _PARTIAL_WEIGHTS, strategy, record, ranks, digests=digests._asdict())
        if ranks.is_first:
            for old in self._list_partials(segment)[:-_PARTIALS_KEPT]:
                discard(old)
        return destination

    def save_finished(
        self, strategy: Strategy, record: SegmentRecord, ranks: Ranks, summarise: Callable[[], SegmentFacts]
    ) -> dict[str, Any]:
        """Save the finished segment durably, then drop its partial checkpoints; return its segment.json.

        To be called by all ranks, as above. Rank 0 asks `summarise()` for segment.json when the rest is written, so
        that it can tell how long that took.
        """
        segment = record.segment
        destination = self.locate_finished(segment)
        partials = self._partials / segment.fingerprint

        def write_summary(folder: Path) -> dict[str, Any]:
            not_used = list_set_aside(destination.parent, destination.name) + list_set_aside(partials)
            summary = dataclasses.asdict(dataclasses.replace(summarise(), checkpoints_not_used=not_used))
            (folder / SEGMENT_FILE).write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
            return summary

        facts = self._save(destination, self._make_weights_name(segment), strategy, record, ranks, finish=write_summary)
        if ranks.is_first:
            discard(partials)
        return facts

    def _save(
        self,
        destination: Path,
        weights_name: str,
        strategy: Strategy,
        record: SegmentRecord,
        ranks: Ranks,
        *,
        finish: Callable[[Path], Any] = lambda _: None,
        **facts: Any,
    ) -> Any:
        """Have all ranks give their state, part by part, and rank 0 write it; return what its `finish(folder)` gives.

        After each part rank 0 says how it went: no rank waits in the next one for a rank 0 that has failed.
        """
        names = {WEIGHTS: weights_name, STATE: STATE_FILE}
        facts |= {**self._facts, "start_checksum": record.counters.start_checksum}
        with contextlib.ExitStack() as open_folder:
            folder = Path()

            def begin() -> None:
                nonlocal folder
                folder = open_folder.enter_context(
                    seal_folder(destination, fingerprint=record.segment.fingerprint, facts=facts)
                )

            def write(part: Part) -> None:
                assert part.content is not None, f"rank 0 has nothing of {part.name}"
                more = {"counters": dataclasses.asdict(record.counters)} if part.name == STATE else {}
                save_tensors({**part.content, **more}, folder / names[part.name])

            def seal() -> Any:
                record.save(folder)
                result = finish(folder)
                open_folder.close()
                return result

            def run_on_first(do: Callable[[], Any]) -> Any:
                return ranks.ask_first_rank(partial(self._explain_missing_room, do, destination, strategy))

            run_on_first(begin)
            for part in strategy.snapshot():
                run_on_first(partial(write, part))
            return run_on_first(seal)

    def _explain_missing_room(self, do: Callable[[], Any], destination: Path, strategy: Strategy) -> Any:
        try:
            return do()
        except OSError as error:
            free = shutil.disk_usage(self._segments.parent).free
            raise UnwritableError(
                f"{destination}: {error.strerror}: a checkpoint needs {strategy.num_checkpoint_bytes:,} bytes, "
                f"{free:,} are free; the one before it is whole: make room and run again"
            ) from None

    def _set_aside(self, folder: Path, problem: str) -> None:
        set_aside(folder, problem)
        self._events.send("checkpoint_not_used", folder=str(folder), problem=problem)

    def _require_same_world_size(self, folder: Path) -> None:
        saved, ours = json.loads((folder / RECEIPT).read_bytes())["world_size"], self._facts["world_size"]
        if saved != ours and not self._exact:
            raise BadCheckpointError(
                f"{folder}: saved by {saved} ranks, this run has {ours}; allowed: {saved} ranks, or exact: true, where "
                "weights do not depend on it"
            )

    def _make_weights_name(self, segment: SegmentConfig) -> str:
        return f"{self._model_name}_{segment.range}-epoch-{segment.epoch}.pt"

    def _list_partials(self, segment: SegmentConfig) -> list[Path]:
        parent = self._partials / segment.fingerprint
        return sorted(path for path in parent.glob("step-*") if path.name.removeprefix("step-").isdigit())


def _restore(strategy: Strategy, folder: Path, weights_name: str, saved: Digests) -> dict[str, Any]:
    """Load weights and state, all or nothing; raises BadCheckpointError before any weight changes.

    Raises it also if the ranks do not hold afterwards what they held when it was `saved`.
    """
    files = {WEIGHTS: folder / weights_name, STATE: folder / STATE_FILE}
    # Mapped: every rank of a machine reads the same pages, and copies what is its own.
    weights, state = (load_tensors(file, is_mapped=True) for file in files.values())
    try:
        strategy.restore(weights, state)
    except MisfitError as misfit:
        require_no_differences(files[misfit.part], misfit.differences)
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        problem = f"not the state of this run: {type(error).__name__}: {error}"
        raise BadCheckpointError(f"{files[STATE]}: {problem}") from None
    for what, loaded, wanted in zip(("weights", "optimizer's state"), strategy.digest(), saved, strict=True):
        if different := {*loaded} - {wanted[0]}:
            text = f"loaded {what} have checksum {different.pop()}, {wanted[0]} were saved"
            raise BadCheckpointError(f"{folder}: {text}")
    return state
