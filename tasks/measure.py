"""Stage `measure`: the speed of all cells, in blocks of real steps, taking turns, before anything is trained.

In weak scaling a cell is timed on larger steps than it is trained on: a few of those are made first, and computed a
second time. What was found stays in .work/measure/ under the digest of everything that it depends on: one more epoch
measures nothing anew, nor does one more range whose rows are about as long.
"""

import dataclasses
import logging
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.equivalence.replay import UpdateReplayer
from tasks.inputs.damage import require_whole
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.measuring.planning import compute_timed_batch, plan_session, tell_training_time
from tasks.measuring.sample import write_sample
from tasks.measuring.session import measure_cells
from tasks.measuring.timed_ranges import select_timed_ranges
from tasks.measuring.versions import list_versions
from tasks.params import Params
from tasks.params.packages import describe_spread
from tasks.params.train import NOT_CONTENT
from tasks.process.failure import exit_with_one_line
from tasks.process.lock import lock_machine
from tasks.process.stopping import stop_on_signals
from tasks.ranks.cell_ranks import choose_device, find_nodes, make_ranks_config
from tasks.ranks.memory import run_within_memory
from tasks.records.fingerprint import MachineFile, TrialFile
from tasks.records.measurement import MeasurementFile
from tasks.records.run import read_segment
from tasks.records.slices import SliceManifest, SlicesManifest
from tasks.records.sources import BaseModelManifest
from tasks.rehearsal.largest import settle_micro_batch
from tasks.store.kept import fill_folder, keep, read_kept
from training.config import SegmentConfig
from training.numerics import NUMERICS_VERSION
from training.process.files import digest_json
from training.process.unwritten import digest_code

_log = logging.getLogger(__name__)

_STORE = Path(".work/measure")
_NUM_STEPS = 3
"""Updates of a batch that is timed and never trained: the first, one with moments, and one of a partial batch."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage is given."""

    snapshot: Snapshot
    params: Params
    model_dir: Path
    """The base model's folder."""
    base_model: BaseModelManifest
    machine: MachineFile
    rows: list[Path]
    """The ranges whose steps are timed (tasks/measuring/timed_ranges.py)."""
    slices: Path
    """Folder with all ranges."""
    rows_digests: Mapping[str, str]
    """Range -> sha256 of its content, of all ranges."""
    trial: str | None
    """The session of measuring that was asked for last; another one measures the speed again."""

    @property
    def key(self) -> str:
        """The digest of everything that the speed depends on, that of the cells which is first included."""
        return digest_json(
            {
                "workload": self.params.workload,
                "base_model": self.base_model.digest,
                "versions": list_versions(),
                "machine": self.machine.digest,
                "environment": self.snapshot.environment,
                "cells": [
                    [
                        cell,
                        describe_spread(self.params, cell),
                        self.params.train_of(cell).model_dump(exclude=set(NOT_CONTENT)),
                    ]
                    for cell in self.params.cells
                ],
                "measure": self.params.measure.model_dump(),
                "rows": [[part.name, self.rows_digests[part.name]] for part in self.rows],
                "trial": self.trial,
            }
        )


def _main() -> None:
    places = ("slices", "base-model", "machine", "trial", "measurements")
    arguments = make_parser("measure", __doc__, *places).parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    machine = MachineFile.read(arguments.machine)
    params = settle_micro_batch(params, machine=machine, base_model=arguments.base_model)
    ranges = [str(part) for part in params.ranges]
    is_weak = params.measure.scaling == "weak"
    least = params.train.global_batch_size * (max(one.world_size for one in params.cells.values()) if is_weak else 1)
    least = max(least, *(compute_timed_batch(params, cell) for cell in params.cells))
    timed = select_timed_ranges(arguments.slices, ranges, seq_len=params.train.seq_len, least_rows=least)
    inputs = Inputs(
        snapshot=snapshot,
        slices=arguments.slices,
        rows=[arguments.slices / name for name in timed],
        rows_digests={name: SliceManifest.read(arguments.slices / name).digest for name in ranges},
        params=params,
        model_dir=arguments.base_model,
        base_model=BaseModelManifest.read(arguments.base_model),
        machine=machine,
        trial=TrialFile.read(arguments.trial).trial,
    )
    found = _measure_or_reuse(inputs) if inputs.params.measure.speed else None
    inputs.snapshot.require_unchanged()
    shutil.rmtree(arguments.measurements, ignore_errors=True)
    arguments.measurements.mkdir(parents=True)
    if found is not None:
        found.write(arguments.measurements)
        slices = SlicesManifest.read(inputs.slices).slices.items()
        _log.info("%s", tell_training_time(inputs.params, found, {name: one.num_rows for name, one in slices}))


def _measure_or_reuse(inputs: Inputs) -> MeasurementFile:
    folder = (_STORE / inputs.key).resolve()
    kept = read_kept(folder, MeasurementFile)
    _log.info("speed: %s", "measured already" if kept else "to be measured")
    if kept:
        return kept
    for part in (inputs.model_dir, *(inputs.slices / name for name in inputs.rows_digests)):
        require_whole(part)
    with lock_machine("measuring"), stop_on_signals() as stop:
        for leftover in _STORE.glob("*.partial"):
            shutil.rmtree(leftover)
        with fill_folder(folder, keeps_failed=True) as new:
            measurement = _measure(inputs, new / "ranks", stop)
            shutil.rmtree(new / "ranks")
            inputs.snapshot.require_unchanged()
            keep(measurement, new)
    return MeasurementFile.read(folder)


def _measure(inputs: Inputs, work: Path, stop: threading.Event) -> MeasurementFile:
    """Measure the cells against each other."""
    session = plan_session(
        inputs.params, machine=inputs.machine, base_model=inputs.model_dir, rows=inputs.rows, work=work
    )
    batches = {cell: compute_timed_batch(inputs.params, cell) for cell in inputs.params.cells}
    updates = {
        cell: _check_updates(inputs, cell, batch, work / "checked" / cell, stop)
        for cell, batch in batches.items()
        if batch != inputs.params.train.global_batch_size and inputs.params.verify.updates
    }
    return measure_cells(session, stop=stop).model_copy(
        update={
            "numerics_version": NUMERICS_VERSION,
            "code_digest": digest_code(),
            "base_model_digest": inputs.base_model.digest,
            "machine_digest": inputs.machine.digest,
            "rows_digests": {part.name: inputs.rows_digests[part.name] for part in inputs.rows},
            "checked_updates": updates,
        }
    )


def _check_updates(inputs: Inputs, cell: str, batch: int, work: Path, stop: threading.Event) -> list[dict[str, Any]]:
    """Return what was found of the first updates of so many samples, made as in a training and computed twice."""
    params, work = inputs.params, work.resolve()
    rows, num_steps = write_sample(
        inputs.slices / str(params.ranges[0]), work / "sample", num_steps=_NUM_STEPS, batch_size=batch
    )
    segment = SegmentConfig(
        range=rows, epoch=1, fingerprint="checked", slice_dir=work / "sample",
        checked_steps=tuple(range(1, num_steps + 1)),
    )  # fmt: skip
    told = make_ranks_config(
        cell, params, device=choose_device(cell, params, inputs.machine), base_model=inputs.model_dir, work=work,
        segments=[segment],
    )  # fmt: skip
    told = dataclasses.replace(told, global_batch_size=batch, max_check_gib=params.verify.max_gib)
    with UpdateReplayer(work) as replayer:
        run_within_memory(
            told, num_shares=params.count_shares(cell), launcher=params.cells[cell].launcher, stop=stop,
            follow=replayer.follow, watchdog_seconds=params.train.watchdog_seconds, nodes=find_nodes(cell, params),
        )  # fmt: skip
    return read_segment(work / "segments" / segment.fingerprint).checked_updates


if __name__ == "__main__":
    exit_with_one_line(_main, name="measure")
