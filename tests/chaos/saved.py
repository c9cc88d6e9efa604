"""What a killed run left on the disk, the next save into it, and what the next start makes of it."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import events_in
from training.config import read_config
from training.process.distributed import Ranks
from training.process.events import EventStream
from training.record.segment import SegmentRecord
from training.record.segment_facts import Counters, SegmentFacts
from training.state.checkpoint import CheckpointStore
from training.strategies.single import step as single
from training.workloads import causal_lm

STEPS_PER_SEGMENT = 8
ALONE = Ranks(rank=0, world_size=1, device=torch.device("cpu"), backend="gloo", gradient_group=None)
"""One rank, which needs no group to talk to itself."""
OLDER, NEWEST = 10, 12
"""Steps of the whole run after which the partial checkpoints stand; the first segment ends with step 8."""
_NEXT = 14


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a launch goes on."""

    stands_after: int
    """Last step of the whole run that need not be done again."""
    checksum: str
    """Of the parameters that were loaded."""
    refused: list[str]
    """Why checkpoints were not used."""


class Saved:
    """A finished segment and two partial checkpoints of the next one, in a folder to be copied for each trial."""

    def __init__(self, root, ranks):
        self.root = root
        model = make_tiny_model(root / "model", hidden_size=16, num_layers=1, dropout=0.1)
        rows = make_slice(root / "slice", num_rows=8 * STEPS_PER_SEGMENT)
        described = make_config(root / "left", model, [rows], epochs=2, checkpoint_every_steps=2)
        # After the update of step 14, before it is saved.
        codes = ranks.launch(described, fault=f"rank=0,step={_NEXT},kind=sigkill")
        assert codes == [-9], codes
        self.config = read_config(root / "left" / "config.json")
        self.strategy, self._starting = (
            single.STRATEGY.build(causal_lm.load_model(model), causal_lm, self.config, ALONE) for _ in range(2)
        )
        """What is saved, and what a start loads."""
        self.checksums = {OLDER: "", NEWEST: ""}
        """Of the parameters after these steps."""
        self._learn_checksums()

    def copy(self):
        """Return a fresh copy of what was left, in place of the one before it."""
        folder = self.root / "work"
        shutil.rmtree(folder, ignore_errors=True)
        # Linked: nothing is ever written into a file of a checkpoint, so what was left stays what it was.
        return Path(shutil.copytree(self.root / "left", folder, copy_function=os.link))

    def partial(self, work, step):
        """Return the folder of the partial checkpoint after that step of the whole run."""
        return work / "partial" / self.config.segments[1].fingerprint / f"step-{step - STEPS_PER_SEGMENT:08d}"

    def segment(self, work, index):
        """Return the folder of a finished segment."""
        return work / "segments" / self.config.segments[index].fingerprint

    def next_partial_save(self, work):
        """Return the save that came next, after step 14; the weights it saves are noted in `checksums`."""
        store, record = self._after_next_step(work, segment_step=_NEXT - STEPS_PER_SEGMENT)
        return lambda: store.save_partial(self.strategy, record, ALONE, self.strategy.digest())

    def next_finished_save(self, work):
        """Return the save of the finished segment, after step 16."""
        store, record = self._after_next_step(work, segment_step=STEPS_PER_SEGMENT)
        record.counters.train_seconds = 1.0
        last, segment = 2 * STEPS_PER_SEGMENT, record.segment
        summary = SegmentFacts(
            **vars(record.counters), cell="1proc", range=segment.range, epoch=segment.epoch,
            fingerprint=segment.fingerprint, first_step=record.first_step, last_step=last, loss=1.0,
            tokens_per_second=1.0, samples_per_second=1.0, backend=None, exchange={},
            parameter_checksums=[self.checksums[last]], optimizer_checksums=self.strategy.digest().optimizer,
        )  # fmt: skip
        return lambda: store.save_finished(self.strategy, record, ALONE, lambda: summary)

    def next_start(self, work):
        """Do what a launch does before its first step."""
        store = self._store(work)
        store.clear_unfinished()
        first, second = self.config.segments
        before = store.find_finished(first, start_checksum=None)
        if before is None:
            return self._start(work, stands_after=0)
        start_checksum = before["parameter_checksums"][0]
        finished = store.find_finished(second, start_checksum=start_checksum)
        if finished is not None:
            store.load_finished(second, self._starting, finished)
            return self._start(work, stands_after=2 * STEPS_PER_SEGMENT)
        folder = store.find_newest_partial(second, start_checksum=start_checksum)
        if folder is None:
            store.load_finished(first, self._starting, before)
            return self._start(work, stands_after=STEPS_PER_SEGMENT)
        record = self._record(work)
        store.load_partial(folder, self._starting, record)
        return self._start(work, stands_after=STEPS_PER_SEGMENT + record.counters.num_steps)

    def _start(self, work, *, stands_after):
        events = events_in(work / "events.jsonl")
        return Start(
            stands_after=stands_after,
            checksum=self._starting.digest().parameters[0],
            refused=[event["problem"] for event in events if event["event"] == "checkpoint_not_used"],
        )

    def _store(self, work):
        events = EventStream(work / "events.jsonl", rank=0)
        return CheckpointStore(work, model_name="tiny", world_size=1, exact=False, events=events)

    def _record(self, work):
        counters = Counters(started_at="", start_checksum="")
        return SegmentRecord(
            segment=self.config.segments[1], first_step=STEPS_PER_SEGMENT + 1, num_steps=STEPS_PER_SEGMENT,
            counters=counters, folder=work,
        )  # fmt: skip

    def _after_next_step(self, work, *, segment_step):
        """Return the store and the record of a run that went on from the newest checkpoint up to that step."""
        store, record = self._store(work), self._record(work)
        store.load_partial(self.partial(work, NEWEST), self.strategy, record)
        with torch.no_grad():
            self.strategy.replica.parameters[0].add_(1.0)
        record.counters.num_steps = segment_step
        self.checksums[STEPS_PER_SEGMENT + segment_step] = self.strategy.digest().parameters[0]
        return store, record

    def _learn_checksums(self):
        work = self.copy()
        self.checksums[NEWEST] = self.next_start(work).checksum
        shutil.rmtree(self.partial(work, NEWEST))
        start = self.next_start(work)
        self.checksums[OLDER] = start.checksum
        facts = json.loads((self.segment(work, 0) / "segment.json").read_bytes())
        self.checksums[STEPS_PER_SEGMENT] = facts["parameter_checksums"][0]
        assert start.stands_after == OLDER
        assert len(set(self.checksums.values())) == 3
