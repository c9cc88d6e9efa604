"""Stage `measure`: what is measured beside the training, before it begins.

First the equivalence certificate of each cell: whether an update of its ranks equals that of one process. Then twins:
the baseline's first steps with sums in other orders, to see how far right trainings part. Then the speed: blocks of
real steps of all cells, taking turns. What was found stays in .work/measure/ under the digest of everything that it
depends on: one more epoch measures twins alone, as does one more range whose rows are about as long, and one more cell
only what is new.
"""

import argparse
import dataclasses
import itertools
import logging
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.equivalence.certificate import Subject, certify, make_certificate_config, make_stop_error
from tasks.equivalence.differences import MARGIN
from tasks.equivalence.reference import has_reference
from tasks.equivalence.twins import train_twins
from tasks.inputs.damage import require_whole
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.measuring.planning import compute_timed_batch, plan_session, tell_training_time
from tasks.measuring.sample import Sample, take_sample
from tasks.measuring.session import measure_cells
from tasks.measuring.timed_ranges import select_timed_ranges
from tasks.measuring.versions import list_versions
from tasks.params import Params
from tasks.params.packages import describe_spread
from tasks.params.schedule import list_schedule_spans
from tasks.params.train import NOT_CONTENT
from tasks.process.disk import require_room
from tasks.process.failure import exit_with_one_line
from tasks.process.lock import lock_machine
from tasks.process.progress import show_progress
from tasks.process.stopping import stop_on_signals
from tasks.ranks.cell_ranks import choose_device, find_nodes, make_ranks_config
from tasks.ranks.memory import name_out_of_memory
from tasks.records.certificate import CertificateFile, CertifiedFile
from tasks.records.fingerprint import MachineFile, TrialFile
from tasks.records.measurement import MeasurementFile
from tasks.records.slices import SliceManifest, SlicesManifest
from tasks.records.sources import BaseModelManifest
from tasks.records.twins import Twins
from tasks.rehearsal.largest import settle_micro_batch
from tasks.store.kept import fill_folder, is_kept, keep
from training.config import SegmentConfig
from training.numerics import NUMERICS_VERSION
from training.process.files import digest_json
from training.process.unwritten import digest_code

_log = logging.getLogger(__name__)

_STORE = Path(".work/measure")
_NUM_STEPS, _FEWEST_STEPS = 8, 3
"""Updates of the certificate: enough for the optimizer's moments, warm-up and a partial last batch to matter; and of a
large model: the first, one with moments, and one of a partial batch."""
_BYTES_PER_UPDATE = 8
"""Of each parameter on disk: its weight and its gradient, in fp32."""
_MOST_BYTES = 4 * 2**30
"""On disk for all updates of the certificate, beyond which it makes do with fewer."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the stage is given."""

    snapshot: Snapshot
    params: Params
    model_dir: Path
    """The base model's folder."""
    base_model: BaseModelManifest
    machine: MachineFile
    samples: Mapping[int, Sample]
    """Samples per update -> the rows that a certificate is made on."""
    rows: list[Path]
    """The ranges whose steps are timed (tasks/measuring/timed_ranges.py)."""
    slices: Path
    """Folder with all ranges."""
    rows_digests: Mapping[str, str]
    """Range -> sha256 of its content, of all ranges."""
    trial: str | None
    """The session of measuring that was asked for last; another one measures the speed again."""

    @property
    def certified(self) -> list[tuple[str, int]]:
        """(cell, samples per update) of every certificate: as trained, and as timed (in weak scaling)."""
        return [
            (cell, batch)
            for cell, spread in self.params.cells.items()
            # A plain process without a wrapper is what the others are held against.
            if spread.strategy != "single"
            for batch in dict.fromkeys((self.params.train.global_batch_size, compute_timed_batch(self.params, cell)))
        ]

    def key(self, cell: str, batch: int) -> str:
        """Return the digest of everything that the certificate of the cell's updates of so many samples depends on."""
        return digest_json(
            {
                "found": "certificate",
                **self._list_common(),
                "cell": cell,
                **self._describe(cell, without=set(NOT_CONTENT)),
                "batch": batch,
                "sample": self.samples[batch].digest,
            }
        )

    def _list_common(self) -> dict[str, Any]:
        """Return what everything depends on that the stage finds out."""
        return {
            "workload": self.params.workload,
            "base_model": self.base_model.digest,
            "versions": list_versions(),
            "machine": self.machine.digest,
            "environment": self.snapshot.environment,
        }

    def _describe(self, cell: str, *, without: set[str]) -> dict[str, Any]:
        """Return what the cell trains, but for the settings that decide nothing there, and how that is spread."""
        return {
            "spread": describe_spread(self.params, cell),
            "train": self.params.train_of(cell).model_dump(exclude=without),
        }

    @property
    def needs_twins(self) -> bool:
        """Whether something is held against twins, and there is a second computation to train them with."""
        is_wanted = len(self.params.cells) > 1 and self.params.measure.twin_seconds > 0
        return is_wanted and has_reference(self.params.workload)

    def compute_twins_key(self) -> str:
        """Return the digest of everything that the twins depend on: the first cell is trained, on the first range."""
        return digest_json(
            {
                "found": "twins",
                **self._list_common(),
                "cells": [
                    [cell, self._describe(cell, without=set(NOT_CONTENT) - {"epochs"})] for cell in self.params.cells
                ],
                "seconds": self.params.measure.twin_seconds,
                "rows": list(self.rows_digests.items()),
            }
        )

    def describe_twins(self) -> dict[str, Any]:
        """Return what decided the twins, as the baseline's own records have it."""
        train = self.params.train_of(self.params.baseline).model_dump(mode="json", exclude=set(NOT_CONTENT))
        return {
            "numerics_version": NUMERICS_VERSION,
            "base_model_digest": self.base_model.digest,
            "machine_digest": self.machine.digest,
            **{f"rows {part}": digest for part, digest in self.rows_digests.items()},
            **{f"train.{name}": value for name, value in train.items()},
        }

    def compute_speed_key(self) -> str:
        """Return the digest of everything that the speed depends on, that of the cells which is first included."""
        return digest_json(
            {
                "found": "speed",
                **self._list_common(),
                "cells": [[cell, self._describe(cell, without=set(NOT_CONTENT))] for cell in self.params.cells],
                "measure": self.params.measure.model_dump(exclude={"twin_seconds"}),
                "rows": [[part.name, self.rows_digests[part.name]] for part in self.rows],
                "trial": self.trial,
            }
        )


def count_updates(num_parameters: int) -> int:
    """Return how many updates are certified of a model of this size, all of which wait on disk to be compared."""
    return _NUM_STEPS if _NUM_STEPS * _BYTES_PER_UPDATE * num_parameters <= _MOST_BYTES else _FEWEST_STEPS


def _main() -> None:
    places = ("slices", "base-model", "machine", "trial", "measurements")
    arguments = make_parser("measure", __doc__, *places).parse_args()
    inputs = _read_inputs(arguments)
    wanted = inputs.certified
    missing = [one for one in wanted if not is_kept(_STORE / inputs.key(*one))]
    cells, left = {cell for cell, _ in wanted}, {cell for cell, _ in missing}
    _log.info("update equivalence: %d of %d cells are certified already", len(cells) - len(left), len(cells))
    speed_key = inputs.compute_speed_key()
    is_wanted = inputs.params.measure.speed
    is_measured = not is_wanted or is_kept(_STORE / speed_key)
    if is_wanted:
        _log.info("speed: %s", "measured already" if is_measured else "to be measured")
    has_twins = not inputs.needs_twins or is_kept(_STORE / inputs.compute_twins_key())
    if missing or not has_twins or not is_measured:
        for folder in (inputs.model_dir, *(inputs.slices / name for name in inputs.rows_digests)):
            require_whole(folder)
        with lock_machine("measuring"), stop_on_signals() as stop:
            for leftover in _STORE.glob("*.partial"):
                shutil.rmtree(leftover)
            for cell, batch in missing:
                _certify(cell, batch, inputs, stop)
            if not has_twins:
                _train_twins(inputs, stop)
            if not is_measured:
                _measure_speed(speed_key, inputs, stop)
    found = [CertifiedFile.read(_STORE / inputs.key(*one)) for one in wanted]
    inputs.snapshot.require_unchanged()
    shutil.rmtree(arguments.measurements, ignore_errors=True)
    CertificateFile(
        numerics_version=NUMERICS_VERSION,
        base_model_digest=inputs.base_model.digest,
        machine_digest=inputs.machine.digest,
        sample=inputs.samples[inputs.params.train.global_batch_size].facts(),
        margin=MARGIN,
        cells=found,
    ).write(arguments.measurements)
    if inputs.needs_twins:
        Twins.read(_STORE / inputs.compute_twins_key()).write(arguments.measurements)
    if is_wanted:
        measurement = MeasurementFile.read(_STORE / speed_key)
        measurement.write(arguments.measurements)
        slices = SlicesManifest.read(inputs.slices).slices.items()
        _log.info("%s", tell_training_time(inputs.params, measurement, {name: one.num_rows for name, one in slices}))


def _certify(cell: str, batch: int, inputs: Inputs, stop: threading.Event) -> None:
    """Make a certificate and keep it; gradients and weights are dropped, logs of a failed launch stay."""
    params, sample, key = inputs.params, inputs.samples[batch], inputs.key(cell, batch)
    device = choose_device(cell, params, inputs.machine)
    with fill_folder((_STORE / key).resolve(), keeps_failed=True) as folder:
        work = folder / "ranks"
        num_bytes = _BYTES_PER_UPDATE * inputs.base_model.num_parameters
        # Beside the updates, the checkpoint: weights and two moments.
        require_room(folder, num_bytes, num=sample.num_steps + 2, what="certified update")
        sample.write(folder / "sample")
        segment = SegmentConfig(range=sample.range, epoch=1, fingerprint=key, slice_dir=folder / "sample")
        told = make_ranks_config(
            cell, params, device=device, base_model=inputs.model_dir, work=work, segments=[segment]
        )
        told = dataclasses.replace(told, global_batch_size=batch, log_every_steps=1)
        subject = Subject(
            config=make_certificate_config(told), trained=told,
            launcher=params.cells[cell].launcher, nodes=find_nodes(cell, params),
            num_steps=sample.num_steps, stop=stop,
        )  # fmt: skip
        certificate = certify(subject)
        shutil.rmtree(work)
        shutil.rmtree(folder / "sample")
        inputs.snapshot.require_unchanged()
        keep(certificate, folder)


def _train_twins(inputs: Inputs, stop: threading.Event) -> None:
    """Train the first steps of the baseline a few times and keep the losses."""
    params, key = inputs.params, inputs.compute_twins_key()
    facts = SlicesManifest.read(inputs.slices).slices
    spans = list_schedule_spans(params, {name: part.num_rows for name, part in facts.items()})
    segments = [
        SegmentConfig(
            range=name, epoch=epoch, fingerprint=key, slice_dir=(inputs.slices / name).resolve(),
            schedule_begin=span.begin, schedule_total=span.total,
        )
        for (name, epoch), span in zip(
            itertools.product(map(str, params.ranges), range(1, params.train.epochs + 1)), spans, strict=True
        )
    ]  # fmt: skip
    with (
        fill_folder((_STORE / key).resolve(), keeps_failed=True) as folder,
        show_progress("twins of the baseline, steps", None) as advance,
    ):
        told = {
            cell: make_ranks_config(
                cell, params, device=choose_device(cell, params, inputs.machine), base_model=inputs.model_dir,
                work=folder / "ranks", segments=segments,
            )
            for cell in params.cells
        }  # fmt: skip

        def count_step() -> None:
            advance(1)
            if stop.is_set():
                raise make_stop_error()

        baseline = told.pop(params.baseline)
        with name_out_of_memory("twins of the baseline (none are trained with measure.twin_seconds: 0)"):
            twins = train_twins(baseline, told, max_seconds=params.measure.twin_seconds, on_step=count_step)
        inputs.snapshot.require_unchanged()
        keep(twins.model_copy(update={"made_of": inputs.describe_twins()}), folder)


def _measure_speed(key: str, inputs: Inputs, stop: threading.Event) -> None:
    """Measure the cells against each other and keep what was found."""
    with fill_folder((_STORE / key).resolve(), keeps_failed=True) as folder:
        work = folder / "ranks"
        session = plan_session(
            inputs.params, machine=inputs.machine, base_model=inputs.model_dir, rows=inputs.rows, work=work
        )
        measurement = measure_cells(session, stop=stop).model_copy(
            update={
                "numerics_version": NUMERICS_VERSION,
                "code_digest": digest_code(),
                "base_model_digest": inputs.base_model.digest,
                "machine_digest": inputs.machine.digest,
                "rows_digests": {part.name: inputs.rows_digests[part.name] for part in inputs.rows},
            }
        )
        shutil.rmtree(work)
        inputs.snapshot.require_unchanged()
        keep(measurement, folder)


def _read_inputs(arguments: argparse.Namespace) -> Inputs:
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    machine = MachineFile.read(arguments.machine)
    params = settle_micro_batch(params, machine=machine, base_model=arguments.base_model)
    base_model = BaseModelManifest.read(arguments.base_model)
    ranges = [str(part) for part in params.ranges]
    is_weak = params.measure.scaling == "weak"
    least = params.train.global_batch_size * (max(one.world_size for one in params.cells.values()) if is_weak else 1)
    batches = {params.train.global_batch_size, *(compute_timed_batch(params, cell) for cell in params.cells)}
    least = max(least, *batches)
    timed = select_timed_ranges(arguments.slices, ranges, seq_len=params.train.seq_len, least_rows=least)
    return Inputs(
        snapshot=snapshot,
        slices=arguments.slices,
        rows=[arguments.slices / name for name in timed],
        rows_digests={name: SliceManifest.read(arguments.slices / name).digest for name in ranges},
        params=params,
        model_dir=arguments.base_model,
        base_model=base_model,
        machine=machine,
        trial=TrialFile.read(arguments.trial).trial,
        samples={
            batch: take_sample(
                arguments.slices,
                ranges[0],
                num_steps=count_updates(base_model.num_parameters),
                batch_size=batch,
            )
            for batch in batches
        },
    )


if __name__ == "__main__":
    exit_with_one_line(_main, name="measure")
