"""Stage `measure`: the speed of all cells, in blocks of real steps, taking turns, before anything is trained.

In weak scaling a cell is timed on larger steps than it is trained on: a few of those are made first, and computed a
second time. What was found stays in .work/measure/ under the digest of everything that it depends on: one more epoch
measures nothing anew, nor does one more range whose rows are about as long.
"""

import dataclasses
import logging
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.equivalence.replay import UpdateReplayer
from tasks.inputs.damage import require_whole
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.measuring.planning import compute_timed_batch, format_training_time, plan_session
from tasks.measuring.session import measure_cells
from tasks.measuring.versions import list_versions
from tasks.params import Params
from tasks.params.train import NOT_CONTENT
from tasks.process.failure import DataError, exit_with_one_line
from tasks.process.lock import lock_machine
from tasks.process.stopping import stop_on_signals
from tasks.ranks.cell_ranks import choose_device, find_nodes, make_ranks_config
from tasks.ranks.memory import run_within_memory
from tasks.records.manifests import BaseModelManifest, MachineFile, SliceManifest, SlicesManifest, TrialFile
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import read_parts
from tasks.records.run import read_segment
from tasks.rehearsal.largest import settle_micro_batch
from tasks.store.kept import fill_folder, keep, read_kept
from training.config import SegmentConfig
from training.numerics import NUMERICS_VERSION
from training.process.files import digest_code, digest_json

_SHARE_APART = 0.05
"""Of the mean length, or of the root of the mean square, which attention goes by."""


_log = logging.getLogger(__name__)

_STORE = Path(".work/measure")
_NUM_STEPS = 3
"""Updates of a batch that is timed and never trained: the first, one with moments, and one of a partial batch."""
_MOST_SKIPPED = 8
"""Of fp16, whose loss scale skips updates until it is small enough: others stand in for those."""


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
    """The ranges whose steps are timed."""
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
                        self.params.describe_spread(cell),
                        self.params.train_of(cell).model_dump(exclude=set(NOT_CONTENT)),
                    ]
                    for cell in self.params.cells
                ],
                "measure": self.params.measure.model_dump(),
                "rows": [[part.name, self.rows_digests[part.name]] for part in self.rows],
                "trial": self.trial,
                **self._verify,
            }
        )

    @property
    def _verify(self) -> dict[str, Any]:
        """How updates are checked, where that is part of what is kept: those of batches that are timed alone."""
        batch, verify = self.params.train.global_batch_size, self.params.verify
        if all(compute_timed_batch(self.params, cell) == batch for cell in self.params.cells):
            return {}
        return {"verify": [bool(verify.updates), verify.max_gib]}


def _main() -> None:
    places = ("slices", "base-model", "machine", "trial", "measurements")
    arguments = make_parser("measure", __doc__, *places).parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    machine = MachineFile.read(arguments.machine)
    params = settle_micro_batch(params, machine=machine, base_model=arguments.base_model)
    ranges = [str(part) for part in params.ranges]
    is_weak = params.measure.scaling == "weak"
    least = params.train.global_batch_size * (max(cell.world_size for cell in params.cells.values()) if is_weak else 1)
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
    measurement = _measure_or_reuse(inputs) if inputs.params.measure.speed else None
    inputs.snapshot.require_unchanged()
    shutil.rmtree(arguments.measurements, ignore_errors=True)
    arguments.measurements.mkdir(parents=True)
    if measurement is None:
        # DVC warns of an empty folder.
        (arguments.measurements / "none").touch()
    else:
        measurement.write(arguments.measurements)
        slices = SlicesManifest.read(inputs.slices).slices.items()
        num_rows = {name: item.num_rows for name, item in slices}
        _log.info("%s", format_training_time(params, measurement, num_rows))


def _measure_or_reuse(inputs: Inputs) -> MeasurementFile:
    folder, params = (_STORE / inputs.key).resolve(), inputs.params
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
            work = new / "ranks"
            session = plan_session(
                params, machine=inputs.machine, base_model=inputs.model_dir, rows=inputs.rows, work=work
            )
            updates = {
                cell: _check_updates(inputs, cell, batch, work / "checked" / cell, stop)
                for cell in params.cells
                if (batch := compute_timed_batch(params, cell)) != params.train.global_batch_size
                and params.verify.updates
            }
            known = {
                "numerics_version": NUMERICS_VERSION,
                "code_digest": digest_code(),
                "base_model_digest": inputs.base_model.digest,
                "machine_digest": inputs.machine.digest,
                "rows_digests": {part.name: inputs.rows_digests[part.name] for part in inputs.rows},
                "checked_updates": updates,
            }
            measurement = measure_cells(session, stop=stop).model_copy(update=known)
            shutil.rmtree(work)
            inputs.snapshot.require_unchanged()
            keep(measurement, new)
    return MeasurementFile.read(folder)


def _check_updates(inputs: Inputs, cell: str, batch: int, work: Path, stop: threading.Event) -> list[dict[str, Any]]:
    """Return what was found of the first updates of so many samples, made as in a training and computed twice."""
    params, work = inputs.params, work.resolve()
    wanted = _NUM_STEPS + _MOST_SKIPPED * (params.train.precision == "fp16")
    rows, num_steps = write_sample(inputs.rows[0], work / "sample", num_steps=wanted, batch_size=batch)
    segment = SegmentConfig(
        range=rows, epoch=1, fingerprint="checked", slice_dir=work / "sample",
        checked_steps=(*range(1, min(num_steps, _NUM_STEPS)), num_steps),
    )  # fmt: skip
    config = make_ranks_config(
        cell, params, device=choose_device(cell, params, inputs.machine), base_model=inputs.model_dir, work=work,
        segments=[segment],
    )  # fmt: skip
    config = dataclasses.replace(config, global_batch_size=batch, max_check_gib=params.verify.max_gib)
    with UpdateReplayer(work) as replayer:
        run_within_memory(
            config, num_shares=params.count_shares(cell), launcher=params.cells[cell].launcher, stop=stop,
            follow=replayer.follow, watchdog_seconds=params.train.watchdog_seconds, nodes=find_nodes(cell, params),
        )  # fmt: skip
    return read_segment(work / "segments" / segment.fingerprint).checked_updates


def write_sample(source: Path, folder: Path, *, num_steps: int, batch_size: int) -> tuple[str, int]:
    """Write the first rows of a slice as one: enough for so many steps, the last of them with a partial batch.

    Returns the range that they are, `start-end`, and the steps that they make; a shorter slice is taken whole. Raises
    DataError if it cannot be read.
    """
    try:
        arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(source.glob("*.npy"))}
        num_rows = min((num_steps - 1) * batch_size + batch_size // 2 + 1, len(arrays["row_ids"]))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{source}: {error}; `dvc repro slice` makes it anew") from None
    # Every file has one entry per row, but for where rows begin and end and what lies between.
    ends = {"offsets": num_rows + 1}
    if "offsets" in arrays:
        ends["tokens"] = int(arrays["offsets"][num_rows])
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[: ends.get(name, num_rows)])
    start = int(source.name.partition("-")[0])
    return f"{start}-{start + num_rows}", -(-num_rows // batch_size)


def select_timed_ranges(slices: Path, ranges: Sequence[str], *, seq_len: int, least_rows: int) -> list[str]:
    """Return the first range if the rows of all others, cut to `seq_len`, are about as long, else all ranges.

    So one more range of the same kind measures nothing again. A range with fewer than `least_rows` makes no full step
    and is left out, unless all are so short. Rows without lengths are all alike.
    """
    full = [name for name in ranges if sum(map(len, read_parts(slices / name / "row_ids.npy"))) >= least_rows]
    first, *others = full or ranges[:1]
    if not (slices / first / "offsets.npy").exists():
        return [first]
    wanted = _compute_mean_lengths(slices / first, seq_len)
    apart = [np.abs(_compute_mean_lengths(slices / name, seq_len) / wanted - 1).max() for name in others]
    return [first, *others] if max(apart, default=0.0) > _SHARE_APART else [first]


def _compute_mean_lengths(folder: Path, seq_len: int) -> np.ndarray:
    """Return the mean length of the rows, and the root of the mean square."""
    sums, before = np.zeros(3), np.zeros(0, dtype=np.int64)
    for part in read_parts(folder / "offsets.npy"):
        lengths = np.minimum(np.diff(np.concatenate([before, part])), seq_len).astype(np.float64)
        sums += [len(lengths), lengths.sum(), np.square(lengths).sum()]
        before = part[-1:].astype(np.int64)
    return np.array([sums[1] / sums[0], np.sqrt(sums[2] / sums[0])])


if __name__ == "__main__":
    exit_with_one_line(_main, name="measure")
