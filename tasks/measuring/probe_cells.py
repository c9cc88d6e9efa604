"""The probe of a comparison: what its ranks say of the parts of a step, and the prediction made from it.

The parts are those of one rank. What several cost each other is in the blocks of the waterfall.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.measuring.arms import Arm, Cell, make_copies_arm, make_trained_arm, name_data_arm
from tasks.measuring.paired import list_copy_seconds, list_device_seconds, pair_arms
from tasks.measuring.prediction import make_prediction, read_model_error
from tasks.measuring.probe import Probe, make_probe
from tasks.measuring.turns import TimedTurns
from tasks.measuring.workers import Workers
from tasks.records.estimate import Estimate
from tasks.records.predicted import Prediction
from tasks.strategies import get_exchange_dtype
from tasks.strategies.communication import find_communication
from training.probing.parts import probe_buckets

_log = logging.getLogger(__name__)

_NUM_ROUNDS = 4
_REPEATS_PER_ROUND = 2
_SHORTER_REACH = 4
_SWEEP_SECONDS = 3.0
"""For the sweeps of one number of ranks."""

Sweeps = Mapping[str, Mapping[int, dict[str, Any]]]
"""Kind of exchange -> number of ranks -> its sweep."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a comparison's probe is made of."""

    baseline: Cell
    """One rank."""
    cells: list[Cell]
    """Those with several ranks, of whose step there is a model."""
    has_copy: bool
    """Whether micro-batches are copied to a device."""
    is_weak: bool
    """Whether a cell's global batch grows with its number of ranks."""
    bytes_per_real_byte: float
    """Bytes that the link carries for each byte of gradient that is really there; 1 unless it only sleeps for them."""
    ranks_per_machine: int | None
    """Devices of this machine; None: not known."""
    overlaps: bool = False
    """Whether the devices compute while weights are gathered."""
    sweeps_beyond_cells: Sweeps = field(default_factory=dict)
    """Of numbers of ranks more than any cell has; they ran nothing else."""

    @property
    def groups(self) -> list[list[Cell]]:
        """The cells that spread the work in the same way, by number of ranks, one for each number, the first."""
        groups: dict[str, dict[int, Cell]] = {}
        for cell in self.cells:
            of_group = groups.setdefault(json.dumps([cell.strategy, dict(cell.options)], sort_keys=True), {})
            of_group.setdefault(cell.world_size, cell)
        return [[by_size[size] for size in sorted(by_size)] for by_size in groups.values()]


def list_kinds(cells: Iterable[Cell]) -> list[str]:
    """Return the kinds of exchange that the models of the cells' steps ask for."""
    return list(dict.fromkeys(kind for cell in cells for kind in find_communication(cell.strategy).KINDS))


def probe_cells(
    probed: Probed,
    workers: Mapping[str, Workers],
    select: Callable[[Cell], TimedTurns],
    *,
    seconds: float = _SWEEP_SECONDS,
    make_ready: Callable[[Arm], None] = lambda _: None,
    hear_sweep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[Probe]:
    """Have one rank time the parts of a step one by one, and all ranks their link; the rest is in the turns.

    Returns one probe for each group of cells. `select`: cell -> the waterfall's turns that count for it and the
    baseline; a group's seconds of the baseline are of its largest cell's. `seconds`: for the sweeps of one number of
    ranks; `make_ready` is told whose ranks are about to be asked, `hear_sweep` what each sweep found.
    """
    baseline, groups = probed.baseline, probed.groups
    exchanges = [_ask_exchange(workers, group[-1], make_ready) for group in groups]
    compute, in_flight = _probe_in_turn(probed, workers, exchanges, make_ready)
    by_size = {cell.world_size: cell for cell in reversed(probed.cells)}
    sweeps: dict[str, dict[int, dict[str, Any]]] = {}
    kinds = list_kinds(probed.cells)
    for size in sorted(by_size):
        swept = sweep_link(workers[by_size[size].name], by_size[size], kinds, seconds=seconds)
        for kind, sweep in swept.items():
            sweeps.setdefault(kind, {})[size] = sweep
            hear_sweep(sweep)
    for kind, beyond in probed.sweeps_beyond_cells.items():
        # More ranks get less far in the same time; one that ended far earlier says nothing of large buckets.
        reach = min(_compute_reach(sweep) for sweep in sweeps[kind].values()) / _SHORTER_REACH
        sweeps[kind] |= {size: sweep for size, sweep in beyond.items() if _compute_reach(sweep) >= reach}
    alone, probes = _merge_compute(compute), []
    for group, exchange in zip(groups, exchanges, strict=True):
        strategy, options = group[0].strategy, group[0].options
        turns = {cell.world_size: select(cell) for cell in group}
        of_largest = turns[max(turns)]
        is_16_bit = get_exchange_dtype(strategy, options) != "none"
        bucket_bytes = exchange.get("bucket_bytes", [])
        probes.append(
            make_probe(
                alone,
                {kind: sweeps[kind] for kind in find_communication(strategy).KINDS},
                strategy=strategy,
                buckets=probe_buckets(bucket_bytes, alone["gradients"]) if bucket_bytes else [],
                paired={
                    cell.world_size: pair_arms(
                        turns[cell.world_size], baseline=baseline, cell=cell, is_weak=probed.is_weak
                    )
                    for cell in group
                },
                baseline_seconds=list_device_seconds(of_largest, baseline),
                copy_seconds={
                    one.world_size: list_copy_seconds(turns.get(one.world_size, of_largest), one)
                    for one in (baseline, *group)
                    if name_data_arm(one, "host") in of_largest.blocks
                }
                if probed.has_copy
                else None,
                in_flight=_merge_in_flight(in_flight) if in_flight else None,
                link_bytes_per_byte=probed.bytes_per_real_byte * (0.5 if is_16_bit else 1.0),
                is_16_bit=is_16_bit,
                scaling="weak" if probed.is_weak else "strong",
                ranks_per_machine=probed.ranks_per_machine,
                options=options,
                exchange=exchange,
                overlaps=probed.overlaps,
            )
        )
    return probes


def _ask_exchange(workers: Mapping[str, Workers], cell: Cell, make_ready: Callable[[Arm], None]) -> dict[str, Any]:
    """Return how the cell's exchange is laid out."""
    trained = make_trained_arm(cell)
    make_ready(trained)
    facts = workers[cell.name].ask("facts", variant=dict(trained.variant), doing="asking for the exchange")[0]
    found: dict[str, Any] = facts["exchange"]
    return found


def _probe_in_turn(
    probed: Probed,
    workers: Mapping[str, Workers],
    exchanges: Sequence[Mapping[str, Any]],
    make_ready: Callable[[Arm], None],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one rank's parts, and a backward beside all-reduces where something is exchanged beside one.

    A little of each after the other, so that what drifts is in both.
    """
    baseline, largest = probed.baseline, max(probed.cells, key=lambda cell: cell.world_size)
    sizes = [
        size * (0.5 if get_exchange_dtype(group[0].strategy, group[0].options) != "none" else 1.0)
        for group, exchange in zip(probed.groups, exchanges, strict=True)
        for size in exchange.get("bucket_bytes", exchange.get("unit_bytes", []))
    ]
    compute, in_flight = list[dict[str, Any]](), list[dict[str, Any]]()
    for _ in range(_NUM_ROUNDS):
        make_ready(make_copies_arm(baseline))
        compute.append(_ask_first_rank(workers[baseline.name], "probe", baseline, num_repeats=_REPEATS_PER_ROUND))
        if sizes:
            make_ready(make_copies_arm(largest))
            beside = {"num_bytes": round(max(sizes)), "num_repeats": 1}
            in_flight.append(_ask_first_rank(workers[largest.name], "in_flight", largest, **beside))
    return compute, in_flight


def sweep_link(
    workers: Workers, cell: Cell, kinds: Sequence[str] = ("all_reduce",), *, seconds: float = _SWEEP_SECONDS
) -> dict[str, dict[str, Any]]:
    """Return kind of exchange -> the ranks' link by size (training/probing/sweep.py), in about so many seconds."""
    return {
        kind: _ask_first_rank(
            workers, "sweep", cell, kind=kind, num_repeats=_NUM_ROUNDS * _REPEATS_PER_ROUND,
            seconds_budget=seconds / len(kinds),
        )
        for kind in kinds
    }  # fmt: skip


def predict_cells(
    probed: Probed,
    workers: Mapping[str, Workers],
    speedups: Mapping[str, Estimate],
    select: Callable[[Cell], TimedTurns],
    *,
    seed: int,
    make_ready: Callable[[Arm], None] = lambda _: None,
    hear_sweep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[Prediction]:
    """Return what other numbers of ranks would give each group of cells; none without a cell that can be predicted.

    `speedups`: arm -> speedup, with a 95 % interval; `select`: cell -> the waterfall's turns that count for it and the
    baseline; `hear_sweep` is told what the link can do, whatever becomes of the prediction.
    """
    if not probed.cells:
        return []
    if not speedups:
        raise ValueError("it begins at a measured speedup, and none has an interval")
    _log.info("probing the parts of a step, and the link, for a prediction")
    probes = probe_cells(probed, workers, select, make_ready=make_ready, hear_sweep=hear_sweep)
    return [
        make_prediction(
            probe,
            measured={cell.world_size: speedups[cell.name] for cell in group},
            cells=[cell.name for cell in group],
            seed=seed,
            model_error=read_model_error(),
        )
        for group, probe in zip(probed.groups, probes, strict=True)
    ]


def _compute_reach(sweep: Mapping[str, Any]) -> float:
    """Return the bytes of the largest exchange of a sweep; 0 if it has none."""
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
