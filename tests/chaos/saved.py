"""What a killed run left on the disk, the next save into it, and what the next start makes of it."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

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


class Start(NamedTuple):
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
        self.checksums = {}
        """Of the parameters after these steps."""
        work = self.copy()
        for step in (NEWEST, OLDER, STEPS_PER_SEGMENT):
            start = self.next_start(work)
            assert start.stands_after == step
            self.checksums[step] = start.checksum
            shutil.rmtree(self.partial(work, step), ignore_errors=True)
        assert len(set(self.checksums.values())) == 3

    def copy(self):
        """Return a fresh copy of what was left, in place of the one before it."""
        folder = self.root / "work"
        shutil.rmtree(folder, ignore_errors=True)
        # Linked: nothing is ever written into a file of a checkpoint, so what was left stays what it was.
        return Path(shutil.copytree(self.root / "left", folder, copy_function=os.link))

    def partial(self, work, step):
        """Return the folder of the partial checkpoint after that step of the whole run."""
        return work / "partial" / self.config.segments[1].fingerprint / f"step-{step - STEPS_PER_SEGMENT:08d}"

    def finished(self, work):
        """Return the folder of the second segment, once it is finished."""
        return work / "segments" / self.config.segments[1].fingerprint

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
        start_checksum = before["parameter_checksums"][0]
        if (finished := store.find_finished(second, start_checksum=start_checksum)) is not None:
            store.load_finished(second, self._starting, finished)
            stands_after = 2 * STEPS_PER_SEGMENT
        elif (folder := store.find_newest_partial(second, start_checksum=start_checksum)) is None:
            store.load_finished(first, self._starting, before)
            stands_after = STEPS_PER_SEGMENT
        else:
            record = self._record(work)
            store.load_partial(folder, self._starting, record)
            stands_after = STEPS_PER_SEGMENT + record.counters.num_steps
        events = events_in(work / "events.jsonl")
        refused = [event["problem"] for event in events if event["event"] == "checkpoint_not_used"]
        return Start(stands_after, self._starting.digest().parameters[0], refused)

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
