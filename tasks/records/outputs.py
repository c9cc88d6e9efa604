"""What the earlier stages wrote, read once and checked: manifests, slices, runs, evaluation, machine."""

import contextlib
import dataclasses
import json
import tokenize
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tasks.params import Params
from tasks.params.choices import has_labels, read_unit
from tasks.process.failure import DataError
from tasks.records.evaluation import EvaluationFile
from tasks.records.ledger import Ledger, Numbers, Samples, digest_rows, make_ledger, read_samples
from tasks.records.manifests import BaseModelManifest, MachineFile, RawManifest, SliceManifest
from tasks.records.measurement import MeasurementFile
from tasks.records.run import RunFile, read_segment, require_sealed
from tasks.records.stage_file import damaged
from training.record.ledger_file import LEDGER, STEPS, count_targets
from training.record.segment_facts import SEGMENT_FILE, SegmentFacts


@dataclass(frozen=True)
class Steps:
    """steps.jsonl as columns, one entry per optimizer step."""

    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    """As logged: 0 where there was no target, which is no loss."""
    learning_rate: NDArray[np.float64]
    num_samples: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    num_positions: NDArray[np.int64]
    """Those tokens and padding."""
    num_targets: NDArray[np.int64]
    """Labels learned from."""
    seconds: NDArray[np.float64]
    other_seconds: NDArray[np.float64]
    """Part of `seconds` in which no step ran."""
    rank_own_seconds: NDArray[np.float64]
    """(steps, ranks): what each rank did without waiting for another; 0 where that is not known."""
    rank_own_positions: NDArray[np.int64]
    """(steps, ranks): how many positions it computed in those seconds."""
    others_share: NDArray[np.float64]
    """Share of the CPUs that others used around each step; nan where that is not known."""

    @property
    def with_loss(self) -> NDArray[np.int64]:
        """Places of the steps that have a loss: that learned from at least one label."""
        return np.flatnonzero(self.num_targets)


@dataclass(frozen=True)
class SliceOutputs:
    """One slice of the data set: its manifest and the rows that it holds."""

    folder: Path
    manifest: SliceManifest

    def row_ids(self) -> Iterator[Numbers]:
        """Yield the positions of the rows in the data set, part by part."""
        return read_parts(self.folder / "row_ids.npy")

    def count_units(self, seq_len: int, *, workload: str) -> int:
        """Return what learning from all rows once counts when they are cut to `seq_len`.

        Of a text: the tokens that can be predicted, or all where it is to be classified; of what is no text: 1.
        """
        if read_unit(workload) != "token":
            return sum(len(part) for part in self.row_ids())
        num_unseen, total, before = 0 if has_labels(workload) else 1, 0, np.zeros(0, dtype=np.int64)
        for part in read_parts(self.folder / "offsets.npy"):
            lengths = np.diff(np.concatenate([before, part]))
            if (lengths < 0).any():
                raise damaged(self.folder / "offsets.npy", ValueError("offsets that fall; allowed: ones that rise"))
            total += int(np.maximum(np.minimum(lengths, seq_len) - num_unseen, 0).sum())
            before = part[-1:].astype(np.int64)
        return total


@dataclass(frozen=True)
class SegmentOutputs:
    """One range x one epoch of one cell: its totals, and what it logged."""

    folder: Path
    facts: SegmentFacts

    @property
    def title(self) -> str:
        """What messages call it: `2proc 0-800 epoch 1`."""
        return f"{self.facts.cell} {self.facts.range} epoch {self.facts.epoch}"

    def read_steps(self) -> Steps:
        """Return every optimizer step of the segment; RunOutputs keeps those of the run."""
        with self._open_sealed(STEPS) as lines:
            steps = _read_steps(event for line in lines if (event := json.loads(line)).get("event", "step") == "step")
            if len(steps.step) != self.facts.num_steps:
                raise ValueError(f"{len(steps.step)} steps, segment.json has {self.facts.num_steps}")
            return steps

    def read_heldout_losses(self, rows: str) -> list[tuple[int, float]]:
        """Return (step, loss) of every look at the held-out rows whose slice has that digest, in mid-training."""
        with self._open_sealed(STEPS) as lines:
            results = [json.loads(line) for line in lines if b"heldout_loss" in line]
            return [
                (int(result["step"]), float(result["heldout_loss"]))
                for result in results
                if result["heldout_rows"] == rows
            ]

    @contextlib.contextmanager
    def _open_sealed(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that the receipt vouches for; what goes wrong with its content is a DataError in one line."""
        path = self.folder / name
        require_sealed(path)
        try:
            with path.open("rb") as file:
                yield file
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(path, error) from None

    @cached_property
    def ledger(self) -> Ledger:
        """What all samples that the segment learned from come to."""
        return make_ledger(self.samples())

    def samples(self) -> Iterator[Samples]:
        """Yield every sample that the segment learned from, part by part."""
        with self._open_sealed(LEDGER) as entries:
            yield from read_samples(entries)


@dataclass(frozen=True)
class RunOutputs:
    """One cell's whole training."""

    facts: RunFile
    segments: list[SegmentOutputs]

    @cached_property
    def parts(self) -> dict[tuple[str | None, int | None], list[SegmentFacts]]:
        """(range, epoch) -> the facts of its segments, in order; None for either stands for all."""
        results: dict[tuple[str | None, int | None], list[SegmentFacts]] = {}
        for segment in self.segments:
            for key in product((None, segment.facts.range), (None, segment.facts.epoch)):
                results.setdefault(key, []).append(segment.facts)
        return results

    def add_up(self, name: str, part: str | None = None, epoch: int | None = None) -> Any:
        """Return the sum of a fact over the segments of one range, one epoch, both or (without either) all."""
        return sum(getattr(facts, name) for facts in self.parts.get((part, epoch), []))

    @cached_property
    def steps(self) -> Steps:
        """Every optimizer step of the run."""
        parts = [segment.read_steps() for segment in self.segments]
        names = [column.name for column in dataclasses.fields(Steps)]
        return Steps(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class Outputs:
    """Everything that a report is made of."""

    params: Params
    raw: RawManifest
    base_model: BaseModelManifest
    machine: MachineFile
    slices: dict[str, SliceOutputs]
    measurement: MeasurementFile | None
    """Of speed; None where the stage `measure` has not run."""
    runs: dict[str, RunOutputs]
    evaluation: EvaluationFile

    @property
    def num_trained(self) -> int:
        """How many numbers have a gradient: all parameters, or an adapter's, counted from the base model's layers."""
        return self.evaluation.num_trained or self.base_model.num_parameters

    @property
    def heldout(self) -> SliceManifest:
        """What is said of the rows that are held out."""
        return self.slices[self.params.heldout_name].manifest

    @property
    def baseline(self) -> RunOutputs:
        """The run of the first cell."""
        return self.runs[self.params.baseline]

    @property
    def others(self) -> dict[str, RunOutputs]:
        """The runs of all other cells."""
        return {cell: run for cell, run in self.runs.items() if cell != self.params.baseline}

    @cached_property
    def row_digests(self) -> dict[str, int]:
        """Range -> the digest of its rows, as a ledger has it."""
        return {str(part): digest_rows(self.slices[str(part)].row_ids()) for part in self.params.ranges}

    @cached_property
    def units_of_ranges(self) -> dict[str, int]:
        """Range -> what learning from it once counts: tokens, or images."""
        seq_len, workload = self.params.train.seq_len, self.params.workload
        return {
            str(part): self.slices[str(part)].count_units(seq_len, workload=workload) for part in self.params.ranges
        }

    @property
    def segments(self) -> list[tuple[str, int]]:
        """The (range, epoch) of every segment that params.yaml asks for, in the order of training."""
        epochs = range(1, self.params.train.epochs + 1)
        return [(str(part), epoch) for part in self.params.ranges for epoch in epochs]


def read_outputs(
    params: Params,
    *,
    raw: Path,
    base_model: Path,
    slices: Path,
    measurements: Path,
    runs: Path,
    evaluation: Path,
    machine: Path,
) -> Outputs:
    """Return what the earlier stages wrote; raises DataError in one line for anything missing or damaged."""
    names = [*(str(part) for part in params.ranges), params.heldout_name]
    measurement = MeasurementFile.read_if_there(measurements)
    if measurement is not None:
        measured = [f"{speed.cell} ({speed.world_size})" for speed in measurement.speeds.values()]
        wanted = [f"{name} ({cell.world_size})" for name, cell in params.cells.items()]
        if measured != wanted:
            raise _make_mismatch(
                MeasurementFile.path_in(measurements), f"cells (ranks) {', '.join(measured)}", ", ".join(wanted)
            )
    return Outputs(
        params=params,
        raw=RawManifest.read(raw),
        base_model=BaseModelManifest.read(base_model),
        machine=MachineFile.read(machine),
        slices={name: SliceOutputs(slices / name, SliceManifest.read(slices / name)) for name in names},
        measurement=measurement,
        runs={cell: _read_run_of(runs / cell, cell, params) for cell in params.cells},
        evaluation=EvaluationFile.read(evaluation),
    )


def _make_mismatch(path: Path, what: str, wanted: str) -> DataError:
    return DataError(f"{path}: {what}, params.yaml has {wanted}; delete it and run `dvc repro` to make it anew")


_PART = 2**16
"""Numbers that are read at once."""
_STEP = np.dtype(
    [(name, np.int64) for name in ("step", "num_samples", "num_tokens", "num_positions", "num_targets")]
    + [(name, np.float64) for name in ("loss", "learning_rate", "seconds", "other_seconds", "others_share")]
)


def _read_steps(events: Iterable[dict[str, Any]]) -> Steps:
    """Return the events as columns, reading one by one: all of them at once would take over a kilobyte per step."""
    own_seconds, own_positions = array("d"), array("q")

    def read_scalars() -> Iterator[tuple[float, ...]]:
        for event in events:
            own_seconds.extend(event["rank_own_seconds"])
            own_positions.extend(event["rank_own_positions"])
            event["num_positions"] = event["num_tokens"] + event["num_padding_tokens"]
            event["num_targets"] = count_targets(event)
            if event.setdefault("others_share", np.nan) is None:
                event["others_share"] = np.nan
            yield tuple(event[name] for name in _STEP.names or ())

    columns = np.fromiter(read_scalars(), dtype=_STEP)
    return Steps(
        **{name: columns[name] for name in columns.dtype.names or ()},
        rank_own_seconds=np.array(own_seconds).reshape(len(columns), -1),
        rank_own_positions=np.array(own_positions).reshape(len(columns), -1),
    )


def _read_run_of(folder: Path, cell: str, params: Params) -> RunOutputs:
    """Return the run in that folder; raises DataError if it is another cell's, or of ranks that this cell has not."""
    run, spread = read_run(folder), params.cells[cell]
    names = [run.facts.cell, *(part.facts.cell for part in run.segments)]
    wanted = (cell, spread.strategy, spread.world_size)
    for result in ((name, run.facts.strategy, run.facts.world_size) for name in names):
        if result != wanted:
            shown, expected = ("{} ({}, {})".format(*item) for item in (result, wanted))
            raise _make_mismatch(RunFile.path_in(folder), f"the training of {shown}", expected)
    return run


def read_run(folder: Path) -> RunOutputs:
    """Return a cell's training as the stage `train` left it; raises DataError as above."""
    facts = RunFile.read(folder)
    places = [folder / entry.folder for entry in facts.segments]
    if not places:
        raise DataError(f"{RunFile.path_in(folder)}: no segments; run the stage train again")
    segments = [SegmentOutputs(place, read_segment(place)) for place in places]
    for entry, segment in zip(facts.segments, segments, strict=True):
        if (fingerprint := segment.facts.fingerprint) != entry.fingerprint:
            other = ValueError(
                f"fingerprint is {fingerprint}, run.json names {entry.fingerprint}: another training's segment"
            )
            raise damaged(segment.folder / SEGMENT_FILE, other)
    return RunOutputs(facts, segments)


def read_parts(file: Path) -> Iterator[Numbers]:
    """Yield the numbers of a .npy file; raises DataError in one line if it is not whole, or no column of them."""
    try:
        with file.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):
                raise ValueError(f"array of version {version}; allowed: (1, 0)")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if len(shape) != 1 or dtype.kind not in "iu":
                raise ValueError(f"array of {dtype}, shape {shape}; allowed: whole numbers in one dimension")
            for first in range(0, shape[0], _PART):
                num_bytes = min(_PART, shape[0] - first) * dtype.itemsize
                raw = stream.read(num_bytes)
                if len(raw) < num_bytes:
                    raise ValueError(f"ends within its {shape[0]:,} numbers")
                yield np.frombuffer(raw, dtype)
            if stream.read(1):
                raise ValueError(f"goes on after its {shape[0]:,} numbers")
    except (OSError, ValueError, SyntaxError, tokenize.TokenError) as error:
        raise damaged(file, error) from None
