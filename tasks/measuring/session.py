"""One measurement of a comparison: preflight, ranks, speedups, waterfalls, prediction and advice."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.measuring.account import Arithmetic, account, estimate
from tasks.measuring.advice import advise
from tasks.measuring.arms import Arm, Cell, as_trained
from tasks.measuring.blocks import Bench
from tasks.measuring.gpu_meter import gpu_meter
from tasks.measuring.host_checks import BYTES_PER_PARAMETER, GIB_PER_RANK
from tasks.measuring.host_facts import cpu_quota, free_memory_bytes
from tasks.measuring.predicting import Probed, predict_cells, sweep_link
from tasks.measuring.preflight import preflight
from tasks.measuring.speed import Comparison, Measured, measure_speed
from tasks.measuring.workers import Workers, working
from tasks.params import Params
from tasks.reporting.measurement import Advice, MeasurementFile, Prediction, Preflight, RankDevice
from tasks.stage.choices import unit_of
from tasks.stage.failure import DataError, DistributedError, PreemptedError, ResourceError
from tasks.stage.progress import counting
from tasks.stage.ranks import choose_device, nodes_of, told_to_ranks
from tasks.strategies import exchanged_as, not_available, profile_of

_log = logging.getLogger(__name__)

_SHARE_OF_MEMORY = 0.6
"""Of the memory, for weights, gradients and optimizer states; activations and buckets need the rest."""
_NO_ROOM = "Prediction and advice were left out: memory has no room for several variants of a step."
_MORE_RANKS = (4, 8)
"""Whose link is measured though no cell has so many, where there are devices for them."""
_HALF_WIDTHS = {"cuda": 0.02, "cpu": 0.03}


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything that a measurement needs."""

    comparison: Comparison
    """What is measured."""
    params: Params
    """The comparison as asked for."""
    configs: Mapping[str, Mapping[str, Any]]
    """Name of the cell -> what its ranks are told."""
    arithmetic: Arithmetic
    """For model FLOPs utilisation."""
    device: str
    """cpu or cuda."""
    num_gpus: int
    """GPUs of this machine."""
    num_devices: int
    """Ranks that this machine has a device of their own for: its GPUs, or its cores by the threads of a rank."""


@dataclass
class _Further:
    """What is measured after the speedups."""

    prediction: Prediction | None = None
    advice: Advice | None = None
    left_out: list[str] = field(default_factory=list)


def measure_cells(
    params: Params,
    *,
    machine: Mapping[str, Any],
    base_model: Path,
    rows: Sequence[Path],
    work: Path,
    stop: threading.Event,
) -> MeasurementFile:
    """Measure the cells of the comparison on the rows of some slices; the ranks' files go to `work`.

    Raises DistributedError if ranks end, ResourceError without enough devices, PreemptedError once asked to stop.
    """
    started = time.perf_counter()
    session = _session(params, machine=machine, base_model=base_model, rows=rows, work=work)
    num_parameters = json.loads((base_model / "manifest.json").read_bytes())["num_parameters"]
    found = preflight(
        params, dict(machine), cells=list(params.cells), device=session.device, folder=work.parent,
        num_parameters=num_parameters,
    )  # fmt: skip
    comparison = session.comparison
    fits = partial(
        has_room, cells=comparison.cells, machine=machine, device=session.device, num_parameters=num_parameters
    )
    holds_all = fits([*comparison.arms, *comparison.counterfactuals])
    if not holds_all:
        _log.warning("each variant of a step is built anew at its turn, which takes longer")
    launchers = {cell: spread.launcher for cell, spread in params.cells.items()}
    nodes = {cell: nodes_of(cell, params) for cell in params.cells}
    _log.info("starting the ranks of %s, which then wait for their turn", ", ".join(params.cells))
    with contextlib.ExitStack() as stack:
        meter = stack.enter_context(gpu_meter()) if session.device == "cuda" else None
        workers = stack.enter_context(working(session.configs, launchers=launchers, nodes=nodes, stop=stop))
        bench = Bench(workers, seed=params.train.seed, meter=meter, holds_all=holds_all)
        with counting("measuring, blocks", None) as advance:
            measured = measure_speed(session.comparison, bench, advance=advance)
        arms = account(session.comparison, bench, measured, session.arithmetic)
        devices = {cell: [RankDevice(**one) for one in group.devices] for cell, group in workers.items()}
        more = _more(session, bench, workers, measured, fits, stop) if holds_all else _Further(left_out=[_NO_ROOM])
    return MeasurementFile(
        scaling=params.measure.scaling,
        preflight=Preflight.model_validate(found),
        noise=measured.noise,
        arms=arms,
        stopped_because=measured.stopped_because,
        half_width_asked=session.comparison.half_width,
        num_rounds=measured.num_rounds,
        seconds=time.perf_counter() - started,
        waterfalls=measured.waterfalls,
        prediction=more.prediction,
        advice=more.advice,
        blocks=measured.blocks,
        ranges=[part.name for part in rows],
        rank_devices=devices,
        left_out=_without_waterfall(comparison) + _not_available(params) + more.left_out,
    )


def _without_waterfall(comparison: Comparison) -> list[str]:
    baseline = comparison.baseline
    if baseline.world_size == 1:
        return []
    return [
        f"Waterfall and prediction were left out: the baseline {baseline.name} has {baseline.world_size} ranks, and "
        "what is lost is counted from one."
    ]


def _not_available(params: Params) -> list[str]:
    """Return what the strategies of the cells with several ranks do not offer; of two alike it is said once."""
    found = {
        sentence.partition(": ")[2]: sentence
        for name, spread in reversed(params.cells.items())
        if spread.world_size > 1
        for sentence in not_available(name, spread.strategy, spread.options, is_exact=params.train.exact)
    }
    return list(reversed(found.values()))


def _more(
    session: Session,
    bench: Bench,
    workers: Mapping[str, Workers],
    measured: Measured,
    fits: Callable[..., bool],
    stop: threading.Event,
) -> "_Further":
    """Return the prediction and the advice; the speedups are measured, and what fails here must not cost them."""
    more = _Further()
    try:
        more.prediction = _predict(session, bench, workers, measured, stop)
    except PreemptedError:
        raise
    except ValueError as error:
        more.left_out.append(f"The prediction was left out: {error}.")
    try:
        more.advice = _advise(session, bench, fits)
    except PreemptedError:
        raise
    except ValueError as error:
        more.left_out.append(f"The advice was left out: {error}.")
    for sentence in more.left_out:
        _log.warning("%s", sentence)
    return more


def has_room(
    arms: Sequence[Arm], cells: Sequence[Cell], machine: Mapping[str, Any], *, device: str, num_parameters: int
) -> bool:
    """Return whether the variants of all arms fit into memory side by side, optimizer state included.

    Counted is the head, and on GPUs its first one: a rank of every cell is there. Activations are not known and left
    room for.
    """
    sizes = {cell.name: cell.world_size // cell.num_nodes for cell in cells}
    variants = {(arm.cell, json.dumps(dict(arm.variant))) for arm in arms}
    num_devices = len(machine["gpus"]) if device == "cuda" else 1
    num_models = sum(-(-sizes[cell] // num_devices) for cell, _ in variants)
    needed = num_models * num_parameters * BYTES_PER_PARAMETER
    free = machine["gpus"][0]["memory_gib"] * 2**30 if device == "cuda" else free_memory_bytes()[0]
    if needed <= _SHARE_OF_MEMORY * free:
        return True
    _log.warning(
        "%d models with their optimizers would take %.1f GiB, %.1f are there", num_models, needed / 2**30, free / 2**30
    )
    return False


def _session(
    params: Params, *, machine: Mapping[str, Any], base_model: Path, rows: Sequence[Path], work: Path
) -> Session:
    devices = {cell: choose_device(cell, params, dict(machine)) for cell in params.cells}
    device = devices[params.baseline]
    is_weak = params.measure.scaling == "weak"
    cells = [_cell(params, name, is_weak=is_weak) for name in params.cells]
    num_rows, lengths = len(np.load(rows[0] / "row_ids.npy", allow_pickle=False)), None
    if unit_of(params.workload) == "token":
        whole = [np.diff(np.load(part / "offsets.npy", allow_pickle=False)) for part in rows]
        lengths = np.minimum(np.concatenate(whole), params.train.seq_len).tolist()
    largest = max(cell.global_batch_size for cell in cells)
    if is_weak and num_rows < largest:
        raise DataError(
            f"range {rows[0].name} has {num_rows} rows, a step of the largest cell {largest} in weak scaling; "
            "allowed: a first range with at least as many"
        )
    segments = [
        {"range": part.name, "epoch": 1, "fingerprint": "measured", "slice_dir": str(part.resolve())} for part in rows
    ]
    return Session(
        comparison=Comparison(
            cells=cells,
            has_copy=device == "cuda" or params.workload == "emulated",
            is_weak=is_weak,
            is_exact=params.train.exact,
            half_width=params.measure.half_width or _HALF_WIDTHS[device],
            max_seconds=params.measure.max_seconds,
            block_seconds=params.measure.block_seconds,
            seed=params.train.seed,
        ),
        params=params,
        configs={
            cell: {
                **told_to_ranks(cell, params, device=devices[cell], base_model=base_model, work=work / cell),
                "segments": segments,
            }
            for cell in params.cells
        },
        arithmetic=Arithmetic(
            base_model=base_model,
            lengths=lengths,
            precision=params.train.precision,
            gpu_name=machine["gpus"][0]["name"] if device == "cuda" else None,
        ),
        device=device,
        num_gpus=machine["num_gpus"],
        num_devices=machine["num_gpus"] if device == "cuda" else _num_cores(machine) // params.train.threads_per_rank,
    )


def _num_cores(machine: Mapping[str, Any]) -> int:
    quota = cpu_quota()
    return int(machine["num_cpus"]) if quota is None else min(int(machine["num_cpus"]), int(quota))


def _cell(params: Params, name: str, *, is_weak: bool) -> Cell:
    spread = params.cells[name]
    batch = params.train.global_batch_size
    overrides: dict[str, int] = {}
    if is_weak:
        batch = batch * spread.world_size // params.cells[params.baseline].world_size
        overrides = {"global_batch_size": batch}
    return Cell(
        name=name, strategy=spread.strategy, world_size=spread.world_size, num_nodes=spread.num_nodes,
        global_batch_size=batch, overrides=overrides,
    )  # fmt: skip


def _advise(session: Session, bench: Bench, fits: Callable[..., bool]) -> Advice | None:
    if not session.params.measure.advice:
        return None
    return advise(session.params, session.comparison, bench, device=session.device, has_room=fits)


def _predict(
    session: Session, bench: Bench, workers: Mapping[str, Workers], measured: Measured, stop: threading.Event
) -> Prediction | None:
    comparison = session.comparison
    exchanged = [exchanged_as(cell.strategy, session.params.cells[cell.name].options) for cell in comparison.spreading]
    if any(_why_no_prediction(session.params, cell.name) for cell in comparison.spreading):
        return None
    largest = max(cell.world_size // cell.num_nodes for cell in comparison.cells)
    has_several_machines = any(cell.num_nodes > 1 for cell in comparison.cells)
    baseline = comparison.baseline
    probed = Probed(
        baseline=baseline,
        cells=comparison.spreading,
        has_copy=comparison.has_copy,
        is_weak=comparison.is_weak,
        bytes_per_real_byte=bench.facts(as_trained(baseline))[0]["bytes_per_real_byte"],
        # Ranks may share devices, and then as many as there were do.
        ranks_per_machine=max(session.num_gpus, largest) if session.num_gpus or has_several_machines else None,
        is_16_bit=any(one != "none" for one in exchanged),
        sweeps_beyond_cells={} if has_several_machines else _sweeps_beyond_cells(session, stop),
    )
    speedups = {arm: estimate(interval) for arm, interval in measured.speedups.items()}
    return predict_cells(probed, bench, workers, speedups, seed=comparison.seed)


def _why_no_prediction(params: Params, cell: str) -> str | None:
    spread = params.cells[cell]
    profile = profile_of(spread.strategy)
    assert profile is not None, "a cell with a waterfall has a profile"
    return profile.why_no_prediction(spread.options, is_exact=params.train.exact)


def _sweeps_beyond_cells(session: Session, stop: threading.Event) -> dict[int, dict[str, Any]]:
    """Return the sweep of the link for each number of ranks beyond the cells' that the machine has devices for.

    How an all-reduce grows with the ranks cannot be told from one number of them. A group that fails costs its sweep.
    """
    spreading = session.comparison.spreading
    if not spreading:
        return {}
    largest = max(spreading, key=lambda cell: cell.world_size)
    sweeps = {}
    for num_ranks in (n for n in _MORE_RANKS if largest.world_size < n <= session.num_devices):
        if num_ranks * GIB_PER_RANK * 2**30 > _SHARE_OF_MEMORY * free_memory_bytes()[0]:
            _log.warning("the link of %d ranks is not measured: memory has no room for them", num_ranks)
            break
        cell = replace(largest, name=f"link of {num_ranks} ranks", world_size=num_ranks)
        told = session.configs[largest.name]
        config = {
            **told, "cell": cell.name, "world_size": num_ranks, "work_dir": f"{told['work_dir']}-link-{num_ranks}"
        }  # fmt: skip
        launchers = {cell.name: session.params.cells[largest.name].launcher}
        _log.info("measuring the link of %d ranks, for the prediction", num_ranks)
        try:
            with working({cell.name: config}, launchers=launchers, stop=stop) as workers:
                sweeps[num_ranks] = sweep_link(workers[cell.name], cell)
        except (ResourceError, DistributedError) as error:
            _log.warning("the prediction goes without the link of %d ranks: %s", num_ranks, error)
    return sweeps
