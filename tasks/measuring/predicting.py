"""The probe of a comparison: what its ranks say of the parts of a step, and the prediction made from it.

The parts are those of one rank. What several cost each other is in the blocks of the waterfall.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks.measuring.arms import Arm, Cell, make_copies_arm, make_trained_arm
from tasks.measuring.blocks import Trials
from tasks.measuring.paired import list_copy_seconds, list_device_seconds, pair_arms
from tasks.measuring.prediction import make_prediction, read_model_error
from tasks.measuring.probe import Probe, make_probe
from tasks.measuring.workers import Workers
from tasks.records.measurement import Estimate, Prediction
from training.probing.parts import probe_buckets

_log = logging.getLogger(__name__)

_NUM_ROUNDS = 4
_REPEATS_PER_ROUND = 2
_SHORTER_REACH = 4
_SWEEP_SECONDS = 3.0
"""For the sweep of one number of ranks."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a comparison's probe is made of."""

    baseline: Cell
    """One rank."""
    cells: list[Cell]
    """Those with several ranks, all of one strategy, whose communication there is a model of."""
    has_copy: bool
    """Whether micro-batches are copied to a device."""
    is_weak: bool
    """Whether a cell's global batch grows with its number of ranks."""
    bytes_per_real_byte: float
    """Bytes that the link carries for each byte of gradient that is really there; 1 unless it only sleeps for them."""
    ranks_per_machine: int | None
    """Devices of this machine; None: not known."""
    is_16_bit: bool = False
    """Whether the ranks exchange gradients in 16 bits."""
    sweeps_beyond_cells: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    """Number of ranks, more than any cell has -> the sweep of their link (sweep_link); they ran nothing else."""


def probe_cells(
    probed: Probed,
    workers: Mapping[str, Workers],
    trials: Trials,
    *,
    seconds: float = _SWEEP_SECONDS,
    make_ready: Callable[[Arm], None] = lambda _: None,
) -> Probe:
    """Have one rank time the parts of a step one by one, and all ranks their link; the rest is in `trials`.

    `seconds`: for the sweep of one number of ranks; `make_ready` is told whose ranks are about to be asked.
    """
    baseline, cells = probed.baseline, probed.cells
    largest = max(cells, key=lambda cell: cell.world_size)
    compute, in_flight = list[dict[str, Any]](), list[dict[str, Any]]()
    trained = make_trained_arm(largest)
    make_ready(trained)
    facts = workers[largest.name].ask("facts", variant=dict(trained.variant), doing="asking for buckets")[0]
    bucket_bytes = facts["exchange"]["bucket_bytes"]
    exchanged = 0.5 if probed.is_16_bit else 1.0
    beside = {"num_bytes": round(exchanged * max(bucket_bytes)), "num_repeats": 1}
    # A little of each after the other, so that what drifts is in both.
    for _ in range(_NUM_ROUNDS):
        make_ready(make_copies_arm(baseline))
        compute.append(_ask_first_rank(workers[baseline.name], "probe", baseline, num_repeats=_REPEATS_PER_ROUND))
        make_ready(make_copies_arm(largest))
        in_flight.append(_ask_first_rank(workers[largest.name], "in_flight", largest, **beside))
    sweeps = {cell.world_size: sweep_link(workers[cell.name], cell, seconds=seconds) for cell in cells}
    # More ranks get less far in the same time; one that ended far earlier says nothing of large buckets.
    reach = min(_compute_reach(sweep) for sweep in sweeps.values()) / _SHORTER_REACH
    sweeps |= {size: sweep for size, sweep in probed.sweeps_beyond_cells.items() if _compute_reach(sweep) >= reach}
    alone = _merge_compute(compute)
    return make_probe(
        alone,
        sweeps,
        strategy=largest.strategy,
        buckets=probe_buckets(bucket_bytes, alone["gradients"]),
        paired={
            cell.world_size: pair_arms(trials, baseline=baseline, cell=cell, is_weak=probed.is_weak) for cell in cells
        },
        baseline_seconds=list_device_seconds(trials, baseline),
        copy_seconds={one.world_size: list_copy_seconds(trials, one) for one in (baseline, *cells)}
        if probed.has_copy
        else None,
        in_flight=_merge_in_flight(in_flight),
        link_bytes_per_byte=probed.bytes_per_real_byte * exchanged,
        is_16_bit=probed.is_16_bit,
        scaling="weak" if probed.is_weak else "strong",
        ranks_per_machine=probed.ranks_per_machine,
    )


def sweep_link(workers: Workers, cell: Cell, *, seconds: float = _SWEEP_SECONDS) -> dict[str, Any]:
    """Return the all-reduce of the ranks' link by size (training/probing/sweep.py), in about so many seconds."""
    return _ask_first_rank(workers, "sweep", cell, num_repeats=_NUM_ROUNDS * _REPEATS_PER_ROUND, seconds_budget=seconds)


def predict_cells(
    probed: Probed,
    workers: Mapping[str, Workers],
    speedups: Mapping[str, Estimate],
    trials: Trials | None,
    *,
    seed: int,
    make_ready: Callable[[Arm], None] = lambda _: None,
) -> Prediction | None:
    """Return what other numbers of ranks would give; None without a cell that exchanges gradients.

    `speedups`: arm -> speedup, with a 95 % interval; `trials`: the blocks of the waterfall.
    """
    if not probed.cells or trials is None:
        return None
    if not speedups:
        raise ValueError("it begins at a measured speedup, and none has an interval")
    by_size = {cell.world_size: cell for cell in reversed(probed.cells)}
    # One cell per number of ranks, the first: others spread the same work otherwise.
    probed = replace(probed, cells=sorted(by_size.values(), key=lambda cell: cell.world_size))
    _log.info("probing the parts of a step, and the link, for a prediction")
    probe = probe_cells(probed, workers, trials, make_ready=make_ready)
    measured = {cell.world_size: speedups[cell.name] for cell in probed.cells}
    return make_prediction(probe, measured=measured, seed=seed, model_error=read_model_error())


def _compute_reach(sweep: Mapping[str, Any]) -> float:
    """Return the bytes of the largest all-reduce of a sweep; 0 if it has none."""
    return max((point["num_bytes"] for point in sweep["points"]), default=0)


def _ask_first_rank(workers: Workers, command: str, cell: Cell, **asked: Any) -> dict[str, Any]:
    """Return the first rank's answer, which tells of all ranks; every rank is on its own."""
    return workers.ask(
        command, variant=dict(make_copies_arm(cell).variant), doing=f"measuring for a {command}", **asked
    )[0]


def _merge_in_flight(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several answers of probe_slowdown_in_flight as one."""
    return {
        name: np.concatenate([np.asarray(answer[name]) for answer in answers], axis=-1)
        for name in ("alone_seconds", "in_flight_seconds")
    }


def _merge_compute(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several answers of probe_compute as one with all their repeats."""
    joined = dict(answers[0])
    for name in ("forward_seconds", "backward_seconds", "optimizer_seconds", "fixed_seconds"):
        joined[name] = np.concatenate([np.asarray(answer[name]) for answer in answers])
    # The order of the gradients is that of the graph: the same in all.
    ready = np.median([[part["ready"] for part in answer["gradients"]] for answer in answers], axis=0)
    joined["gradients"] = [
        {**part, "ready": float(share)} for part, share in zip(joined["gradients"], ready, strict=True)
    ]
    return joined
