"""What a segment has done so far: counters, step lines and the ledger of samples, kept through stops and resumes."""

import dataclasses
import datetime
import json
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from training.config import SegmentConfig
from training.data.batches import MicroBatch
from training.process.distributed import Ranks
from training.process.files import Stamps, read_stamps, require_unwritten
from training.record.ledger_file import LEDGER_COLUMNS, LEDGER_DTYPE, STEPS, LedgerFile
from training.record.segment_facts import Counters, Exchanged, RankDevice, RecordedExchanges, SegmentFacts
from training.record.window import StepFacts
from training.step.snapshot import Digests
from training.step.strategy import StepResult
from training.step.traffic import SEND, Recorded, count_exchanges

_STEPS_IN_MEMORY = 512
"""So many steps wait in memory: about 500 bytes of text each, and 16 per sample."""
_MARKS = 64
"""Log points that are remembered for comparing counters with what torch recorded."""
_SUMMED = (
    "loss_sum", "num_samples", "num_tokens", "num_targets", "num_padding_tokens", "data_wait_seconds", "other_seconds",
)  # fmt: skip


@dataclass
class SegmentRecord:
    """Counters are the same on every rank; ledger and lines are rank 0's, on whose disk what is old of them waits."""

    segment: SegmentConfig
    """Which segment this is the record of."""
    first_step: int
    """Its first step, counted from 1 over the whole run."""
    num_steps: int
    """Its number of optimizer steps."""
    counters: Counters
    """Running totals."""
    folder: Path
    """Where its files are, which have no name."""
    is_first_rank: bool = True
    """Whether this rank is the one that writes."""
    earlier_train_seconds: float = 0.0
    """Of the segments before it: the timed steps."""
    earlier_check_seconds: float = 0.0
    """Of the segments before it: the checks of updates."""
    _consumed: "array[int]" = field(default_factory=lambda: array(LEDGER_DTYPE.char))
    _text: bytearray = field(default_factory=bytearray)
    _num_waiting: int = 0
    _loaded_from: Path | None = None
    _marks: "deque[tuple[tuple[int, ...], int, int, int]]" = field(default_factory=lambda: deque(maxlen=_MARKS))
    _span_started: float = 0.0
    _stamps: Stamps = field(init=False)

    def __post_init__(self) -> None:
        self._stamps = read_stamps(self.segment.slice_dir)

    @property
    def earlier_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of steps.jsonl of the checkpoint that was loaded, while it is there."""
        if self._loaded_from is not None:
            with (self._loaded_from / STEPS).open("rb") as saved:
                yield from map(json.loads, saved)

    def mark_exchanges(self, ranks: Ranks, *, num_steps: int, anew: bool = False) -> None:
        """Note where the counters stand, while no step runs: from there on they are compared with what was recorded.

        `num_steps`: of the segment so far; `anew`: what was recorded before is forgotten, not all of it was steps.
        """
        if anew:
            self._marks.clear()
        kinds = [total for kind, total in self.counters.traffic.items() if kind != SEND]
        number, num_bytes = sum(kind.number for kind in kinds), sum(kind.num_bytes for kind in kinds)
        self._marks.append((count_exchanges(ranks), num_steps, number, num_bytes))

    @cached_property
    def _ledger_file(self) -> LedgerFile:
        return LedgerFile(self.folder)

    def start_span(self) -> None:
        """Let span_seconds run on from here, beside the clock of the steps and without knowing of it."""
        self._span_started = time.perf_counter() - self.counters.span_seconds

    def note_span(self) -> None:
        """Bring span_seconds up to now."""
        self.counters.span_seconds = time.perf_counter() - self._span_started

    def consume(self, step: int, rank: int, micro_batches: Sequence[MicroBatch], result: StepResult) -> None:
        """Enter what this rank put through the model in a step; `rank`: whose share of the rows that was."""
        for kind, (number, num_bytes) in result.traffic.items():
            total = self.counters.traffic.setdefault(kind, Exchanged())
            total.number += number
            total.num_bytes += num_bytes
        for part in micro_batches:
            rows = np.empty((part.num_samples, len(LEDGER_COLUMNS)), dtype=LEDGER_DTYPE)
            rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = rank, step, part.row_ids, part.sample_num_tokens
            self._consumed.frombytes(rows.tobytes())

    def add(self, facts: Sequence[StepFacts]) -> list[dict[str, Any]]:
        """Count the steps of a window; return their lines."""
        lines = []
        for fact in facts:
            self.counters.num_steps = fact.step - self.first_step + 1
            for name in _SUMMED:
                setattr(self.counters, name, getattr(self.counters, name) + getattr(fact, name))
            self.counters.train_seconds += fact.seconds
            values = dataclasses.asdict(fact)
            if fact.num_targets == fact.num_tokens:
                # Where every token that is learned from is a target.
                del values["num_targets"]
            loss_sum = values.pop("loss_sum")
            lines.append(
                {
                    "event": "step",
                    "step": values.pop("step"),
                    "range": self.segment.range,
                    "epoch": self.segment.epoch,
                    "segment_step": self.counters.num_steps,
                    "segment_steps": self.num_steps,
                    "loss": loss_sum / max(fact.num_targets, 1),
                    **{key: part for key, part in values.items() if part is not None or not key.startswith("heldout_")},
                }
            )
        self._num_waiting += len(facts)
        if self.is_first_rank:
            self._text += "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        return lines

    def note_launch(
        self, *, micro_batch_size: int, version_drift: Sequence[str], setting: dict[str, Any], code_digest: str
    ) -> None:
        """Enter what a launch that goes on with the segment does otherwise than those before."""
        counters = self.counters
        noted: list[tuple[list[Any], Any]] = [
            (counters.micro_batch_sizes, micro_batch_size), (counters.settings, setting),
            (counters.code_digests, code_digest), *((counters.version_drift, part) for part in version_drift),
        ]  # fmt: skip
        for known, value in noted:
            if value not in known:
                known.append(value)

    def file_away(self, ranks: Ranks, *, everything: bool = False) -> None:
        """Bring what waits on any rank to rank 0's disk, by step and rank, if it is much or `everything` is wanted.

        To be called by all ranks, between steps. Raises UnwritableError on all of them if there is no room.
        """
        if self._num_waiting < _STEPS_IN_MEMORY and not everything:
            return
        mine = np.frombuffer(self._consumed, dtype=LEDGER_DTYPE).reshape(-1, len(LEDGER_COLUMNS))
        entries = np.concatenate(ranks.gather_rows(mine))
        entries = entries[np.lexsort((entries[:, 0], entries[:, 1]))]
        ranks.ask_first_rank(lambda: self._ledger_file.append(entries.tobytes(), bytes(self._text)))
        self._consumed, self._text, self._num_waiting = array(LEDGER_DTYPE.char), bytearray(), 0

    def save(self, folder: Path) -> None:
        """Write ledger.int32 and steps.jsonl, once all is filed away; OSError if there is no room."""
        if self._num_waiting:
            raise RuntimeError(f"{self._num_waiting} steps wait in memory; file_away(everything=True) comes first")
        self._ledger_file.save(folder)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote; raises BadCheckpointError, on the first rank, if it is no ledger."""
        self._loaded_from = folder
        if self.is_first_rank:
            self._ledger_file.load(folder)

    def summary(
        self,
        cell: str,
        ranks: Ranks,
        *,
        exchange: dict[str, Any],
        digests: Digests,
        rank_devices: list[dict[str, Any]],
    ) -> SegmentFacts:
        """Return what the finished segment came to; raises ChangedInputError if its rows were written to meanwhile."""
        require_unwritten(self.segment.slice_dir, self._stamps)
        totals, recorded, exchanges = self.counters, Recorded(ranks), None
        *marks, (end, last_step, last_number, last_bytes) = self._marks
        # Of as many steps as the record still has, between two marks; None where it has none.
        for start, step, number, num_bytes in marks:
            if (given := recorded.between(start, end)) is not None:
                exchanges = RecordedExchanges(
                    num_steps=last_step - step, number=given.number, num_bytes=given.num_bytes,
                    counted_number=last_number - number, counted_bytes=last_bytes - num_bytes,
                )  # fmt: skip
                break
        return SegmentFacts(
            **vars(totals),
            cell=cell,
            range=self.segment.range,
            epoch=self.segment.epoch,
            fingerprint=self.segment.fingerprint,
            first_step=self.first_step,
            last_step=self.first_step + self.num_steps - 1,
            loss=totals.loss_sum / max(totals.num_targets, 1),
            tokens_per_second=totals.num_tokens / totals.train_seconds,
            samples_per_second=totals.num_samples / totals.train_seconds,
            backend=ranks.backend if ranks.world_size > 1 else None,
            exchange=exchange,
            parameter_checksums=digests.parameters,
            optimizer_checksums=digests.optimizer,
            rank_devices=[RankDevice(**device) for device in rank_devices],
            recorded_exchanges=exchanges,
        )


def format_utc_time() -> str:
    """Return the wall clock, UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
