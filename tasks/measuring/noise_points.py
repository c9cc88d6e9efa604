"""Where the gradient noise scale is taken: at the base model, and after every segment of the baseline's training."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tasks.equivalence.reference import has_reference
from tasks.evaluating.kept import reuse_or_make
from tasks.inputs.damage import require_digest
from tasks.inputs.meaning import collect_meanings
from tasks.inputs.snapshot import Snapshot
from tasks.measuring.noise_scale import measure_noise_scale
from tasks.params import Params
from tasks.params.packages import read_package_versions
from tasks.params.train import NOT_CONTENT
from tasks.process import wording
from tasks.process.progress import show_progress
from tasks.ranks.cell_ranks import make_ranks_config
from tasks.ranks.memory import name_out_of_memory
from tasks.records.noise_scale import NoiseScale, NoiseScaleFile
from tasks.records.slices import SliceManifest
from training.config import SegmentConfig

_log = logging.getLogger(__name__)

_NOT_NOISE = {*NOT_CONTENT, "schedule", "schedule_span", "schedule_floor", "decay_steps", "warmup_steps"} | {
    "learning_rate", "momentum", "adam_beta1", "weight_decay", "precision", "compile", "exact",
    "activation_checkpointing",
}  # fmt: skip
"""Keys of `train` that no gradient at given weights depends on, as one process computes it in fp32; nor what AdamW
makes of its square, which follows from the state's digest, from beta2 and from what gradients are clipped to."""


class Point(NamedTuple):
    """One place along the training."""

    range: str
    epoch: int
    """0: the base model."""
    checkpoint: Path | None
    """None for the base model."""
    weights_digest: str
    state_digest: str | None
    """Of the optimizer's state beside the checkpoint; None of the base model, or where there is none."""


def list_noise_inputs(params: Params, point: Point, *, slices: Path, base_model: str, code: str) -> dict[str, Any]:
    """Return everything that the noise scale at a point depends on; `base_model`: its digest."""
    return {
        "base_model": base_model,
        "weights": point.weights_digest,
        "state": point.state_digest,
        "rows": SliceManifest.read(slices / point.range).digest,
        "range": [point.range, point.epoch],
        "train": params.train_of(params.baseline).model_dump(exclude=_NOT_NOISE),
        "statistics_rows": params.count_statistics_rows(params.baseline),
        "batches": params.quality.noise_batches,
        "workload": params.workload,
        "packages": read_package_versions(params, params.baseline),
        "code": [code, collect_meanings("tasks.measuring.noise_points")],
    }


def measure_points(
    points: list[Point], params: Params, snapshot: Snapshot, *, slices: Path, base_model: Mapping[str, Any], code: str
) -> list[NoiseScale]:
    """Return the noise scale at each point; none of a workload without a second computation, or of a short range.

    `base_model`: its `folder` and `digest`.
    """
    if not params.quality.noise_batches or not has_reference(params.workload):
        return []
    found: list[NoiseScale] = []
    for point in points:
        depends_on = list_noise_inputs(params, point, slices=slices, base_model=base_model["digest"], code=code)
        what = f"noise scale {f'after {point.range} epoch {point.epoch}' if point.epoch else 'at the start'}: measured"
        file = reuse_or_make(
            what, NoiseScaleFile, depends_on, partial(_measure, point, params, slices, base_model["folder"]), snapshot
        )
        found += file.points
    return found


def _measure(point: Point, params: Params, slices: Path, base_model: Path) -> NoiseScaleFile:
    import torch

    from tasks.equivalence.reference.adapter import load_trained

    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    # The next pass's order: its rows come as they would if the training went on.
    segment = SegmentConfig(
        range=point.range, epoch=point.epoch + 1, slice_dir=(slices / point.range).resolve(), fingerprint="noise"
    )
    config = replace(
        make_ranks_config(
            params.baseline, params, device=device, base_model=base_model, work=Path(), segments=[segment]
        ),
        threads_per_rank=len(os.sched_getaffinity(0)),  # no other rank computes beside it
    )
    num_batches = params.quality.noise_batches
    what = "the gradient noise scale (none is measured with quality.noise_batches: 0)"
    with show_progress("gradient noise scale, batches", num_batches) as advance, name_out_of_memory(what):
        has_adapter = bool(config.adapter)
        weights = None if point.checkpoint is None else load_trained(point.checkpoint, has_adapter=has_adapter)
        state = load_state(point, params)
        found = measure_noise_scale(
            config, weights, epoch=point.epoch, num_batches=num_batches, state=state, advance=advance
        )
    where = f"after {point.range} epoch {point.epoch}" if point.epoch else "at the start"
    if found is None:
        _log.info("noise scale %s: %s has too few rows to measure it", where, point.range)
        return NoiseScaleFile(points=[])
    value = wording.format_optional(found.value, wording.format_three_digits)
    high = wording.format_optional(found.high, wording.format_three_digits)
    _log.info(
        "noise scale %s: %s samples (%.3g to %s), by %d batches, %s",
        where, value, found.low, high, found.num_batches, found.coordinates,
    )  # fmt: skip
    return NoiseScaleFile(points=[found.model_copy(update={"weights_digest": point.weights_digest})])


def load_state(point: Point, params: Params) -> dict[str, Any] | None:
    """Return the optimizer's state beside the checkpoint, byte for byte what its receipt says; None without one.

    Raises DataError (exit code 3) where it is damaged. That of SGD is not looked at.
    """
    if point.checkpoint is None or point.state_digest is None or params.train.optimizer != "adamw":
        return None
    from training.model.weights import load_tensors
    from training.state.receipt import STATE_FILE

    file = point.checkpoint.with_name(STATE_FILE)
    require_digest(file, point.state_digest)
    return load_tensors(file)
