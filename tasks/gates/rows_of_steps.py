"""Which rows a timed step has to have had: those of the training's ledger, or a second computation of larger steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tasks.gates.asked_for import order_rows
from tasks.records.blocks import BlockWork
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs
from training.data.row_digest import digest_rows


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
