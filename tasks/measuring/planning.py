"""What a measurement of a comparison needs, before anything runs: cells, the ranks' configs, devices, time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np

from tasks.machine.host_facts import read_cpu_quota
from tasks.measuring.arms import Cell, make_tuned_arms
from tasks.measuring.timed_comparison import TimedComparison
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.process import wording
from tasks.process.failure import DataError
from tasks.ranks.cell_ranks import choose_device, make_ranks_config
from tasks.records.manifests import MachineFile
from tasks.records.measurement import MeasurementFile
from training.config import SegmentConfig, TrainingConfig

_MOST_TIMES = {"cpu": 8, "cuda": 4}
"""Times its own micro-batch that is tried on the baseline; a GPU's memory may not have room for it, and says so."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything that a measurement needs."""

    comparison: TimedComparison
    """What is measured."""
    params: Params
    """The comparison as asked for."""
    machine: MachineFile
    """What is known of this machine."""
    rows: Sequence[Path]
    """The slices whose steps are timed."""
    work: Path
    """Folder for the ranks' files."""
    configs: Mapping[str, TrainingConfig]
    """Name of the cell -> what its ranks are told."""
    base_model: Path
    """Folder of the model."""
    lengths: Sequence[int] | None
    """Tokens of each row that is trained on, after cutting; None where rows are no sequences."""
    device: Literal["cpu", "cuda"]
    """Where the baseline computes."""


def format_training_time(params: Params, measurement: MeasurementFile, num_rows: Mapping[str, int]) -> str:
    """Return how long a whole training of each cell takes as fast as it was timed; `num_rows`: of each range."""
    rows = sum(num_rows[str(part)] for part in params.ranges) * params.train.epochs
    spans = {
        cell: timedelta(seconds=round(rows / speed.samples_per_second)) for cell, speed in measurement.speeds.items()
    }
    names = wording.join_names([f"{cell} {span}" for cell, span in spans.items()])
    end = datetime.now() + sum(spans.values(), timedelta())
    return (
        f"as timed, a whole training takes, beside the launches of its ranks (h:min:s): {names}; all of them end about "
        f"{end:%a %H:%M} if none is finished"
    )


def plan_session(
    params: Params, *, machine: MachineFile, base_model: Path, rows: Sequence[Path], work: Path
) -> Session:
    """Return what measuring the comparison on the rows of some slices needs; the ranks' files will go to `work`.

    Raises ResourceError without enough devices, DataError without enough rows.
    """
    devices = {cell: choose_device(cell, params, machine) for cell in params.cells}
    device = devices[params.baseline]
    is_weak = params.measure.scaling == "weak"
    cells = [
        Cell(
            name=name, strategy=spread.strategy, world_size=spread.world_size, num_nodes=spread.num_nodes,
            global_batch_size=batch, overrides={"global_batch_size": batch} if is_weak else {}, options=spread.options,
        )
        for name, spread in params.cells.items()
        for batch in [compute_timed_batch(params, name)]
    ]  # fmt: skip
    num_rows, lengths = len(np.load(rows[0] / "row_ids.npy", allow_pickle=False)), None
    num_cores, quota = machine.num_cpus, read_cpu_quota()
    if quota is not None:
        num_cores = min(num_cores, int(quota))
    if read_unit(params.workload) == "token":
        whole = [np.diff(np.load(part / "offsets.npy", allow_pickle=False)) for part in rows]
        lengths = np.minimum(np.concatenate(whole), params.train.seq_len).tolist()
    largest = max(cell.global_batch_size for cell in cells)
    if is_weak and num_rows < largest:
        raise DataError(
            f"range {rows[0].name} has {num_rows} rows, a step of the largest cell {largest} in weak scaling; "
            "allowed: a range with at least as many"
        )
    segments = [
        SegmentConfig(range=part.name, epoch=1, fingerprint="measured", slice_dir=part.resolve()) for part in rows
    ]
    configs = {
        cell: make_ranks_config(
            cell, params, device=devices[cell], base_model=base_model, work=work / cell, segments=segments
        )
        for cell in params.cells
    }
    own, batch = params.train.micro_batch_size, params.train.global_batch_size
    sizes = range(own + 1, min(own * _MOST_TIMES[device], batch) + 1)
    return Session(
        comparison=TimedComparison(
            cells=cells,
            has_copy=device == "cuda",
            is_weak=is_weak,
            is_exact=params.train.exact,
            half_width=params.measure.half_width,
            max_seconds=params.measure.max_seconds,
            burn_in_seconds=params.measure.burn_in_seconds,
            tuned=make_tuned_arms(
                cells[0],
                # The largest that is worth trying, where a step has as many samples.
                micro_batch_size=max((size for size in sizes if batch % size == 0), default=None),
                num_threads=num_cores if device == "cpu" and num_cores >= 2 * params.train.threads_per_rank else None,
            )
            if cells[0].world_size == 1
            else (),
            # Ranks that tell each other nothing would normalise other rows, and do other work.
            waterfall_seconds=0.0 if params.model.norm == "sync_batch" else params.measure.waterfall_seconds,
            most_share=params.measure.others_share,
            block_seconds=params.measure.block_seconds,
            seed=params.train.seed,
        ),
        params=params,
        machine=machine,
        rows=rows,
        work=work,
        configs=configs,
        base_model=base_model,
        lengths=lengths,
        device=device,
    )


def compute_timed_batch(params: Params, cell: str) -> int:
    """Return the samples of a timed step of the cell: in weak scaling they grow with its number of ranks."""
    batch = params.train.global_batch_size
    if params.measure.scaling == "strong":
        return batch
    return batch * params.cells[cell].world_size // params.cells[params.baseline].world_size
