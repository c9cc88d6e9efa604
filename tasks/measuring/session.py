"""One measurement of a comparison: preflight, ranks, speedups, waterfalls, the link and advice."""

import contextlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tasks.machine.gpu_meter import open_gpu_meter
from tasks.machine.host_checks import BYTES_PER_PARAMETER
from tasks.machine.host_facts import read_free_memory_bytes
from tasks.machine.preflight import run_preflight
from tasks.machine.usable_gpus import FIRST_WITH_BF16, parse_capability
from tasks.measuring.account import compute_noise, compute_speeds
from tasks.measuring.advice import advise
from tasks.measuring.arms import Arm, Cell, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.memory import observe_memory, rehearse_memory
from tasks.measuring.planning import Session
from tasks.measuring.timed_comparison import TimedComparison, measure_comparison
from tasks.measuring.waterfall import reconcile
from tasks.measuring.workers import Workers, open_workers
from tasks.params import Params
from tasks.params.train import LoraParams
from tasks.process.failure import ConfigurationError, DistributedError, PreemptedError, ResourceError
from tasks.process.progress import show_progress
from tasks.ranks.cell_ranks import find_nodes
from tasks.records.manifests import BaseModelManifest, MachineFile
from tasks.records.measurement import Advice, LinkSpeed, MeasurementFile, RankTimeline, Waterfall
from training.record.segment_facts import RankDevice
from training.strategies import find_traits

_BYTES_OF_WEIGHT = 4
_BYTES_OF_GRADIENT = 4
_BYTES_ROUNDED = 4 / 8 + 4 / 64
"""A level of 4 bits, and a number of 4 bytes for every 64 of them."""


@dataclass(frozen=True, kw_only=True)
class HeldBytes:
    """What the variants of a step share on a rank (training/probing/variants.py), and what each has of its own."""

    shared: int
    """Weights and moments."""
    of_variant: int
    """A gradient, which lies in DDP's buckets where it has some."""

    @property
    def num_parameters(self) -> int:
        """As many parameters, trained with their moments, would take what one variant does."""
        return -(-(self.shared + self.of_variant) // BYTES_PER_PARAMETER)


_log = logging.getLogger(__name__)

_SHARE_OF_MEMORY = 0.6
"""Of the memory, for weights, gradients and optimizer states; activations and buckets need the rest."""


def measure_cells(session: Session, *, stop: threading.Event) -> MeasurementFile:
    """Measure the cells of the comparison.

    Raises DistributedError if ranks end, ResourceError without enough memory, PreemptedError once asked to stop.
    """
    started = time.perf_counter()
    params, machine, comparison = session.params, session.machine, session.comparison
    num_parameters = BaseModelManifest.read(session.base_model).num_parameters
    held = count_all_trained(num_parameters)
    if params.train.adapter is not None:
        held = count_beside_adapter(
            params.train.adapter, session.base_model, workload=params.workload, num_parameters=num_parameters,
            device=session.device,
        )  # fmt: skip
    preflight = run_preflight(
        params, machine, cells=list(params.cells), device=session.device, folder=session.work.parent,
        num_parameters=held.num_parameters,
    )  # fmt: skip
    fits = partial(has_room, cells=comparison.cells, machine=machine, device=session.device, held=held)
    holds_all = fits([*comparison.arms, *comparison.optional, *comparison.counterfactuals])
    if not holds_all:
        _log.warning("each variant of a step is built anew at its turn, which takes longer")
    launchers = {cell: spread.launcher for cell, spread in params.cells.items()}
    nodes = {cell: find_nodes(cell, params) for cell in params.cells}
    _log.info("starting the ranks of %s, which then wait for their turn", ", ".join(params.cells))
    with contextlib.ExitStack() as stack:
        meter = stack.enter_context(open_gpu_meter()) if session.device == "cuda" else None
        workers = stack.enter_context(open_workers(session.configs, launchers=launchers, nodes=nodes, stop=stop))
        observed = observe_memory(session, workers) if params.measure.memory else {}
        bench = Bench(workers, seed=params.train.seed, meter=meter, holds_all=holds_all)
        seconds = comparison.max_seconds + (comparison.waterfall_seconds if comparison.spreading else 0.0)
        with show_progress("measuring, blocks of max_seconds and waterfall_seconds", None, seconds=seconds) as advance:
            measured = measure_comparison(comparison, bench, advance=advance)
        speeds = compute_speeds(session, bench, measured)
        devices = {
            cell: [[RankDevice(**item) for item in launch] for launch in group.devices]
            for cell, group in workers.items()
        }
        if holds_all:
            # Once more, after the blocks: what a step changes stays unseen where it is asked before them alone.
            bench.build(comparison.trained)
        settings = {
            cell.name: workers[cell.name].list_settings(make_trained_arm(cell).variant) for cell in comparison.cells
        }
        waits = []
        # What the ranks of cells without a waterfall timed by themselves, in words.
        for cell in comparison.cells:
            if cell.world_size > 1 and cell not in comparison.spreading:
                timers, traits = bench.fetch_timers(make_trained_arm(cell)), find_traits(cell.strategy)
                said = all(timers) and traits.explain_timers(timers, cell.options, world_size=cell.world_size)
                waits += [f"{cell.name}: {said}."] if said else []
        links, left_out = _measure_links(comparison, bench, workers), list[str]()
        advice = _advise(session, bench, fits, measured.waterfalls, left_out) if params.measure.advice else None
        # Last: nothing is timed after it, and what it may break is not needed any more.
        timelines = _record_timelines(comparison, bench, workers, left_out)
    speedups, given = measured.speedups, measured.speedups.make_records(speeds, is_weak=comparison.is_weak)
    blocks = [block for blocks in speedups.timed_turns.blocks.values() for block in blocks]
    known = [block.others_share for block in blocks if block.others_share is not None]
    slowed = [any(gpu.slowed_share for gpu in block.gpus) for block in blocks if block.gpus]
    baseline = comparison.baseline
    if params.model.norm == "sync_batch":
        why = "with model.norm sync_batch ranks that tell each other nothing do other work"
    elif not comparison.waterfall_seconds:
        why = "measure.waterfall_seconds is 0"
    else:
        why = (
            f"the baseline {baseline.name} has {baseline.world_size} ranks, and what is lost is counted from one"
        ) * (baseline.world_size > 1)
    return MeasurementFile(
        scaling=params.measure.scaling,
        preflight=preflight,
        noise=compute_noise(comparison, measured),
        speeds=speeds,
        speedups=given,
        beside=measured.of_baseline,
        stopped_because=speedups.stopped_because,
        half_width_asked=comparison.half_width,
        num_launches=speedups.num_launches,
        num_turns=len(speedups.timed_turns.turns),
        most_others_share=comparison.most_share,
        others_share=sum(known) / len(known) if known else None,
        gpu_slowed_share=sum(slowed) / len(slowed) if slowed else None,
        seconds=time.perf_counter() - started,
        # As part of the account that the speedups are of, where there is one.
        waterfalls=[
            reconcile(
                waterfall,
                measured=speeds[waterfall.cell].step_seconds.value,
                efficiency=given[waterfall.cell].parallel_efficiency.value,
            )
            if waterfall.cell in given
            else waterfall
            for waterfall in measured.waterfalls
        ],
        advice=advice,
        blocks=measured.blocks,
        ranges=[part.name for part in session.rows],
        memory=rehearse_memory(session, observed),
        links=links,
        waits=waits,
        timelines=timelines,
        devices_of_starts=devices,
        settings=settings,
        left_out=[f"The waterfall was left out: {why}."] * bool(why)
        + _collect_unavailable(params, {waterfall.cell for waterfall in measured.waterfalls})
        + left_out,
    )


def _record_timelines(
    comparison: TimedComparison, bench: Bench, workers: Mapping[str, Workers], left_out: list[str]
) -> dict[str, list[RankTimeline]]:
    """Return what each rank of each cell does in one step; what cannot be recorded is added to `left_out`."""
    results = {}
    for arm in comparison.trained:
        try:
            bench.make_ready(arm)
            answers = workers[arm.cell].ask("timeline", variant=dict(arm.variant), doing=f"recording {arm.name}")
            results[arm.cell] = [RankTimeline.model_validate(answer) for answer in answers]
        except (DistributedError, ResourceError, ValueError) as error:
            left_out.append(f"The timeline of {arm.cell} was left out: {error}.")
            _log.warning("%s", left_out[-1])
            break
    return results


def _collect_unavailable(params: Params, with_waterfall: Collection[str]) -> list[str]:
    """Return what a report cannot say of cells with several ranks, for their strategies; of two alike it is said once.

    `with_waterfall`: those that have one all the same, by what their ranks timed themselves.
    """
    results = {}
    for name, spread in reversed(params.cells.items()):
        traits = find_traits(spread.strategy)
        exact = f"the strategy {spread.strategy} in exact mode" if params.train.exact else None
        reasons = {"no waterfall": exact or traits.no_waterfall, "no advice on options": exact or traits.no_advice}
        for what, why in reasons.items():
            if why and spread.world_size > 1 and not (what == "no waterfall" and name in with_waterfall):
                results[what, why] = f"{name}: {what} for {why}."
    return list(reversed(results.values()))


def has_room(arms: Sequence[Arm], cells: Sequence[Cell], machine: MachineFile, *, device: str, held: HeldBytes) -> bool:
    """Return whether the variants of all arms fit into memory side by side, optimizer state included.

    Counted is the head, and on GPUs its first one: a rank of every cell is there. One whose memory the driver does not
    tell has the host's. Activations are not known and left room for.
    """
    sizes = {cell.name: cell.world_size // cell.num_nodes for cell in cells}
    variants = Counter(cell for cell, _ in {(arm.cell, json.dumps(dict(arm.variant))) for arm in arms})
    num_devices = len(machine.gpus) if device == "cuda" else 1
    num_ranks = {cell: -(-sizes[cell] // num_devices) for cell in variants}
    needed = sum(num_ranks[cell] * (held.shared + number * held.of_variant) for cell, number in variants.items())
    memory_gib = machine.gpus[0].memory_gib if device == "cuda" else None
    free = read_free_memory_bytes()[0] if memory_gib is None else memory_gib * 2**30
    if needed <= _SHARE_OF_MEMORY * free:
        return True
    _log.warning(
        "%d variants of a step on %d ranks would take %.1f GiB, %.1f are there",
        variants.total(), sum(num_ranks.values()), needed / 2**30, free / 2**30,
    )  # fmt: skip
    return False


def _advise(
    session: Session, bench: Bench, fits: Callable[..., bool], waterfalls: Sequence[Waterfall], left_out: list[str]
) -> Advice | None:
    """Return the advice, or add why there is none to `left_out`: what fails here must not cost the speedups."""
    capabilities = [parse_capability(gpu) for gpu in session.machine.gpus]
    try:
        return advise(
            session.params, session.comparison, bench, device=session.device, has_room=fits, waterfalls=waterfalls,
            has_bf16=all(capability is None or capability >= FIRST_WITH_BF16 for capability in capabilities),
        )  # fmt: skip
    except PreemptedError:
        raise
    except ValueError as error:
        left_out.append(f"The advice was left out: {error}.")
        _log.warning("%s", left_out[-1])
        return None


def _measure_links(comparison: TimedComparison, bench: Bench, workers: Mapping[str, Workers]) -> list[LinkSpeed]:
    """Return what the link between as many ranks as any cell has can do; nothing where all have one rank."""
    largest = max(comparison.cells, key=lambda cell: cell.world_size)
    if largest.world_size == 1:
        return []
    arm = make_trained_arm(largest)
    bench.make_ready(arm)
    sweep, *_ = workers[largest.name].ask("sweep", variant=dict(arm.variant), doing="measuring the link")
    if not sweep["points"]:
        return []
    sizes, seconds = ([point[name] for point in sweep["points"]] for name in ("num_bytes", "median_seconds"))
    latency, per_byte = fit_line(sizes, seconds)
    # Source: nccl-tests, doc/PERFORMANCE.md.
    over_a_link = 2 * (largest.world_size - 1) / largest.world_size * sizes[-1]
    return [
        LinkSpeed(
            **{name: sweep[name] for name in ("world_size", "kind", "backend", "is_slept_for")},
            num_bytes=sizes[-1],
            seconds=seconds[-1],
            bus_gb_per_second=over_a_link / seconds[-1] / 1e9,
            latency_seconds=latency,
            seconds_per_byte=per_byte,
        )
    ]


def fit_line(num_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of no bytes and those of a byte, by least squares of relative errors; neither is below 0."""
    from scipy.optimize import nnls  # importing it takes a second

    sizes, taken = np.asarray(num_bytes, dtype=float), np.asarray(seconds, dtype=float)
    # In shares of the largest, so that both columns are of one size; of one size alone it is a line through 0.
    columns = np.stack([np.full(len(sizes), float(len(sizes) > 1)), sizes / sizes.max()], axis=1)
    (latency, of_largest), _ = nnls(columns / taken[:, None], np.ones(len(sizes)))
    return float(latency), float(of_largest / sizes.max())


def count_all_trained(num_parameters: int) -> HeldBytes:
    """Return what a model holds all of whose weights are trained."""
    gradient = _BYTES_OF_GRADIENT * num_parameters
    return HeldBytes(shared=BYTES_PER_PARAMETER * num_parameters - gradient, of_variant=gradient)


def count_beside_adapter(
    adapter: LoraParams, base_model: Path, *, workload: str, num_parameters: int, device: str
) -> HeldBytes:
    """Return what a model holds of which an adapter's factors are trained.

    On a GPU what is rounded waits there in 4 bits: every linear layer's weight but the head's. Embedding, head and all
    else stay in fp32, and so do all on a CPU, where they are read before they are rounded. Raises ConfigurationError
    where the model has no such layers.
    """
    # Here, not above: seconds.
    import torch

    from tasks.equivalence.reference.adapter import count_factors
    from training.model.adapter import ALL_LINEAR, list_targets
    from training.process.failure import UnfitModelError
    from training.workloads import find_workload

    with torch.device("meta"):
        model = find_workload(workload).outline_model(base_model)
    try:
        num_factors = count_factors(model, adapter.model_dump())
        rounded = list_targets(model, ALL_LINEAR).values() if adapter.base and device == "cuda" else ()
    except UnfitModelError as error:
        raise ConfigurationError(str(error)) from None
    num_rounded = sum(layer.weight.numel() for layer in rounded)
    weights = _BYTES_OF_WEIGHT * (num_parameters - num_rounded) + round(_BYTES_ROUNDED * num_rounded)
    trained = count_all_trained(num_factors)
    return HeldBytes(shared=weights + trained.shared, of_variant=trained.of_variant)
