"""Which rows a timed step has to have had: those of the training's ledger, or a second computation of larger steps;
and whether those of the timed blocks are like those of the training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from tasks.gates.asked_for import order_rows
from tasks.params.choices import read_unit
from tasks.records.blocks import BlockWork
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs
from training.record.ledger_file import digest_rows

_SHARE_APART = 0.10
"""Of tokens per sample, which rule how long a step takes and how much of it is computation."""
_DEVIATIONS = 4
"""Standard errors that blocks of so few steps may be off by, beside that."""


@dataclass
class RowsOfSteps:
    """Of the steps of one cell."""

    outputs: Outputs
    measurement: MeasurementFile
    cell: str

    def digest(self, block: BlockWork, *, batch: int) -> tuple[str, int]:
        """Return digest and tokens of the rows of the block's steps, each of so many samples.

        Steps as trained had what the ledger says; larger ones, of weak scaling, have as many of the same order of rows.
        """
        found = [self._find_rows(block.range, step, batch) for step in block.steps]
        return f"{digest_rows([[rows] for rows, _ in found]):016x}", sum(tokens for _, tokens in found)

    def _find_rows(self, part: str, step: int, batch: int) -> tuple[NDArray[np.int64], int]:
        if batch == self.outputs.runs[self.cell].facts.global_batch_size:
            return self._trained.get(part, {}).get(step, (np.zeros(0, dtype=np.int64), 0))
        if part not in self._orders:
            self._orders[part] = order_rows(self.outputs.params, self.outputs.slices[part], part, epoch=1)
        rows = self._orders[part][(step - 1) * batch : step * batch]
        known, tokens = self._tokens.get(part, (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)))
        return rows, int(tokens[np.isin(known, rows)].sum())

    @cached_property
    def _orders(self) -> dict[str, NDArray[np.int64]]:
        return {}

    @cached_property
    def _tokens(self) -> Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Range -> its rows, and the tokens that the training learned of each in the first epoch."""
        found = {}
        for segment in self.outputs.runs[self.cell].segments:
            if segment.facts.epoch == 1 and segment.facts.range in self._steps_of_blocks:
                parts = [(part.row_id.astype(np.int64), part.num_tokens.astype(np.int64)) for part in segment.samples()]
                rows, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
                found[segment.facts.range] = (rows, tokens)
        return found

    @cached_property
    def _trained(self) -> dict[str, dict[int, tuple[NDArray[np.int64], int]]]:
        """Range -> step of its first epoch, from 1 -> rows and tokens, as far as blocks had them."""
        found: dict[str, dict[int, tuple[NDArray[np.int64], int]]] = {}
        before = 0
        for segment in self.outputs.runs[self.cell].segments:
            steps = self._steps_of_blocks.get(segment.facts.range, set()) if segment.facts.epoch == 1 else set()
            rows: dict[int, tuple[NDArray[np.int64], int]] = {}
            for part in segment.samples() if steps else ():
                local = part.step.astype(np.int64) - before
                for step in np.intersect1d(local, sorted(steps)).tolist():
                    known, num_tokens = rows.get(step, (np.zeros(0, dtype=np.int64), 0))
                    mine = local == step
                    rows[step] = (
                        np.concatenate([known, part.row_id[mine]]).astype(np.int64),
                        num_tokens + int(part.num_tokens[mine].sum()),
                    )
            if rows:
                found[segment.facts.range] = rows
            before += segment.facts.num_steps
        return found

    @cached_property
    def _steps_of_blocks(self) -> dict[str, set[int]]:
        wanted: dict[str, set[int]] = {}
        for arm in self.measurement.blocks:
            for block in arm.blocks if arm.cell == self.cell else ():
                wanted.setdefault(block.range, set()).update(block.steps)
        return wanted


def check_timed_rows(outputs: Outputs, cell: str) -> Finding | None:
    """Check the tokens per sample in a cell's timed blocks against those of its whole training."""
    measurement = outputs.measurement
    if measurement is None:
        return None
    timed = [
        block for arm in measurement.blocks if arm.cell == cell and arm.kind == "as trained" for block in arm.blocks
    ]
    if not timed:
        return make_unchecked_finding(explain("no_blocks", "{cell}: its timed blocks left no record", cell=cell))
    run, unit = outputs.runs[cell], read_unit(outputs.params.workload)
    facts = [segment.facts for segment in run.segments]
    trained = sum(one.num_tokens for one in facts) / sum(one.num_samples for one in facts)
    tokens = sum(block.num_tokens for block in timed) / sum(block.num_samples for block in timed)
    # Not with their padding: packs of one length hide how much a step's rows scatter, but where rows are few.
    per_step = run.steps.num_tokens / run.steps.num_samples
    num_different = len({(block.range, step) for block in timed for step in block.steps})
    error = float(per_step.std() / per_step.mean()) / math.sqrt(num_different)
    allowed = _SHARE_APART + _DEVIATIONS * error
    apart = tokens / trained - 1
    told = explain(
        "passed",
        "{cell}: {tokens_per_sample:.1f} {unit}s per sample in {steps:plural step} of {ranges}, {of_training:.1f} in "
        "the whole training",
        cell=cell, unit=unit, tokens_per_sample=tokens, steps=num_different, of_training=trained, most_apart=allowed,
        ranges=list(dict.fromkeys(block.range for block in timed)),
    )  # fmt: skip
    if abs(apart) <= allowed:
        return make_finding([], told)
    return make_failed_finding(
        replace(told, code="more_tokens" if apart > 0 else "fewer_tokens").extend(
            "{sentence}: {apart:percent} " + ("more" if apart > 0 else "fewer") + ", at most {most_apart:percent} "
            "allowed; the speedup is of other rows than were trained on",
            apart=abs(apart),
        )
    )
