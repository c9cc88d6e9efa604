"""The probe of a comparison: what its ranks say of the parts of a step, and the prediction made from it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.measuring.arms import Cell
from tasks.measuring.prediction import WORLD_SIZES, as_prediction, read_model_error
from tasks.measuring.probe import Probe, probe_from
from tasks.measuring.waterfall import COPY, WRAPPER
from tasks.measuring.workers import Workers
from tasks.reporting.measurement import Estimate, Prediction, Waterfall
from training.probe import probe_buckets

_log = logging.getLogger(__name__)

_NUM_REPEATS = 10
_SWEEP_SECONDS = 3.0
"""For the sweep of one number of ranks."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a comparison's probe is made of."""

    baseline: Cell
    """One rank."""
    cells: list[Cell]
    """Those with several ranks whose gradients DDP exchanges."""
    waterfalls: list[Waterfall]
    """Theirs."""
    is_weak: bool
    """Whether a cell's global batch grows with its number of ranks."""
    bytes_per_real_byte: float
    """Bytes that an emulated link carries for one real byte of gradient; 1 otherwise."""
    ranks_per_machine: int | None
    """Devices of this machine; None: not known."""


def probe_cells(probed: Probed, workers: Mapping[str, Workers], *, seconds: float = _SWEEP_SECONDS) -> Probe:
    """Have the ranks time the parts of a step one by one, alone and together, and their link."""
    lone = {"is_independent": True}
    groups = [probed.baseline, *probed.cells]
    # One repeat of each number of ranks after another, so that what drifts is in all of them.
    asked: dict[int, list[list[dict[str, Any]]]] = {cell.world_size: [] for cell in groups}
    for _ in range(2):
        for cell in groups:
            asked[cell.world_size].append(
                workers[cell.name].ask("probe", variant=lone, num_repeats=_NUM_REPEATS // 2, doing="probing a step")
            )
    compute = {size: _joined([answers[0] for answers in found]) for size, found in asked.items()}
    sweeps = {
        cell.world_size: workers[cell.name].ask(
            "sweep", variant=lone, num_repeats=_NUM_REPEATS, seconds_budget=seconds, doing="sweeping all-reduces"
        )[0]
        for cell in probed.cells
    }
    largest = max(probed.cells, key=lambda cell: cell.world_size)
    facts = workers[largest.name].ask("facts", doing="asking for buckets")[0]
    buckets = probe_buckets(facts["gradient_bucket_bytes"], compute[1]["gradients"])
    wrapper = [_seconds(fall, WRAPPER) for fall in probed.waterfalls if fall.cell == largest.name]
    copies = [_seconds(fall, COPY) for fall in probed.waterfalls if fall.cell == largest.name]
    num_copies = len(compute[1]["forward_seconds"][0][0]) / largest.world_size
    return probe_from(
        compute,
        sweeps,
        buckets=buckets,
        wrapper_seconds=wrapper or (0.0,),
        copy_seconds=[seconds / num_copies for seconds in copies] or (0.0,),
        link_bytes_per_byte=probed.bytes_per_real_byte,
        scaling="weak" if probed.is_weak else "strong",
        ranks_per_machine=probed.ranks_per_machine,
    )


def predict_cells(
    probed: Probed, workers: Mapping[str, Workers], speedups: Mapping[str, Estimate], *, seed: int
) -> Prediction | None:
    """Return what other numbers of ranks would give; None without a cell that exchanges gradients."""
    if not probed.cells or probed.baseline.world_size != 1:
        return None
    _log.info("probing the parts of a step, and the link, for a prediction")
    probe = probe_cells(probed, workers)
    measured = {cell.world_size: speedups[cell.name] for cell in probed.cells if cell.name in speedups}
    sizes = sorted({*WORLD_SIZES, *measured})
    prediction = as_prediction(probe, measured=measured, seed=seed, model_error=read_model_error(), world_sizes=sizes)
    told = ", ".join(f"{point.speedup.value:.2f}x on {point.world_size}" for point in prediction.curves[0].points)
    _log.info("predicted: %s", told)
    return prediction


def _joined(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several answers of probe_compute as one with all their repeats."""
    joined = dict(answers[0])
    for name in ("forward_seconds", "backward_seconds", "optimizer_seconds", "step_seconds", "fixed_seconds"):
        joined[name] = np.concatenate([np.asarray(answer[name]) for answer in answers], axis=1).tolist()
    return joined


def _seconds(fall: Waterfall, name: str) -> float:
    return next((part.seconds.value for part in fall.parts if part.name == name), 0.0)
