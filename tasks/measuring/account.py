"""What was timed, in records: seconds, rates and utilisation of every cell."""

import json

import numpy as np

from tasks.machine.gpu_facts import find_peak_tflops
from tasks.measuring.arms import Cell
from tasks.measuring.bench import Bench
from tasks.measuring.intervals import FEWEST_LAUNCHES, FEWEST_TURNS, Launches, estimate_ratio
from tasks.measuring.model_flops import find_model_shape
from tasks.measuring.planning import Session
from tasks.measuring.timed_comparison import Measured, TimedComparison
from tasks.measuring.waterfall import compute_data_wait_share
from tasks.records.measurement import CellSpeed, NoiseFloor


def compute_speeds(session: Session, bench: Bench, measured: Measured) -> dict[str, CellSpeed]:
    """Return what every cell took in the blocks that count for it."""
    speedups, results, comparison = measured.speedups, dict[str, CellSpeed](), session.comparison
    others = [name for name in speedups.timed_turns.blocks if name != speedups.baseline] or [speedups.baseline]
    for cell, arm in zip(comparison.cells, comparison.trained, strict=True):
        timed_turns = speedups.select_counted(arm.name)
        blocks = timed_turns.blocks[arm.name]
        seconds = sum(block.whole_seconds for block in blocks)
        tokens, positions, samples = (
            sum(getattr(block, name) for block in blocks) / seconds
            for name in ("num_tokens", "num_positions", "num_samples")
        )
        kernels = [fact.get("setting", {}).get("kernels", {}) for fact in bench.facts(arm)]
        mfu, mfu_palm = _compute_utilisation(
            session, cell, tokens, positions,
            positions_per_row=positions / samples,
            is_tf32=any(kernel.get("matmul_precision", "highest") != "highest" for kernel in kernels),
        )  # fmt: skip
        steps = np.concatenate([block.step_seconds for block in blocks], axis=1)
        p50, p95 = np.percentile(steps, [50, 95], axis=1).tolist()
        peaks = {
            name: max((fact[name] for fact in bench.facts(arm) if fact[name] is not None), default=None)
            for name in ("peak_memory_gib", "peak_reserved_gib")
        }
        launches: Launches = timed_turns.list_by_launch(arm.name)
        if len(launches) < FEWEST_LAUNCHES:
            launches = [timed_turns.list_by_turn(arm.name)]
        # Only the head's GPUs are asked. The energy is that of the lead-in too, the tokens and seconds are not: power
        # is what carries over.
        metered = [block for block in blocks if block.gpus and cell.num_nodes == 1]
        gpus = [gpu for block in metered for gpu in block.gpus]
        busy = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
        joules = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
        watts = None
        if gpus and len(joules) == len(gpus):
            watts = sum(joules) / sum(block.metered_seconds for block in metered)
        results[cell.name] = CellSpeed(
            cell=cell.name,
            world_size=cell.world_size,
            global_batch_size=cell.global_batch_size,
            num_blocks=len(blocks),
            num_quiet_turns=len(speedups.find_quiet_turns(others if arm.name == speedups.baseline else [arm.name])),
            steps_per_block=blocks[0].step_seconds.shape[1],
            # As a ratio to 1: seconds lie above 0, however they scatter.
            step_seconds=estimate_ratio(launches, [[1.0] * len(launch) for launch in launches]),
            step_p50_seconds=p50,
            step_p95_seconds=p95,
            tokens_per_second=tokens,
            padded_tokens_per_second=positions,
            samples_per_second=samples,
            mfu=mfu,
            mfu_palm=mfu_palm,
            **peaks,
            gpu_utilisation=sum(busy) / len(busy) if busy else None,
            gpu_watts=watts,
            joules_per_token=watts
            and watts * sum(block.whole_seconds for block in metered) / sum(block.num_tokens for block in metered),
            data_wait_share=compute_data_wait_share(timed_turns, arm),
        )
    return results


def _compute_utilisation(
    session: Session,
    cell: Cell,
    tokens_per_second: float,
    positions_per_second: float,
    *,
    positions_per_row: float,
    is_tf32: bool,
) -> tuple[float | None, float | None]:
    """Return MFU counted within documents and by PaLM's definition; None where peak or shape is not known, or above 1.

    Tokens learned from are one fewer per row than tokens fed.
    """
    train, lengths = session.params.train, session.lengths
    # The formulas count the products of a gradient that most weights have none of beside an adapter.
    if session.device == "cpu" or lengths is None or train.adapter is not None:
        return None, None
    precisions = ["tf32"] * (is_tf32 and train.precision == "fp32") + [train.precision]
    peaks = (find_peak_tflops(session.machine.gpus[0].name, precision) for precision in precisions)
    peak = next(filter(None, peaks), None)
    shape, _ = find_model_shape(json.loads((session.base_model / "config.json").read_bytes()))
    if shape is None or peak is None:
        return None, None
    available = peak * 1e12 * cell.world_size
    per_label = shape.count_document_flops(lengths) / max(sum(lengths) - len(lengths), 1)
    palm = shape.count_flops_per_token(round(positions_per_row)) * positions_per_second
    used = per_label * tokens_per_second / available
    return (used if used <= 1 else None), (palm / available if palm <= available else None)


def compute_noise(comparison: TimedComparison, measured: Measured) -> NoiseFloor | None:
    """Return every cell that counts against itself: of two neighbouring turns of a launch the one against the other.

    Their rows differ, so that positions are compared, not steps. Which of the two comes first alternates.
    """
    halves: tuple[list[float], list[float]] = ([], [])
    variations = []
    for arm in comparison.trained:
        if not measured.speedups.counts(arm.name):
            continue
        timed_turns = measured.speedups.select_counted(arm.name)
        launches = timed_turns.list_by_launch(arm.name, lambda block: block.whole_seconds / block.num_positions)
        figures = np.concatenate(launches)
        variations.append(float(figures.std(ddof=1) / figures.mean()) if len(figures) > 1 else 0.0)
        for figures in map(np.asarray, launches):
            for pair in range(len(figures) // 2):
                figure, other = figures[2 * pair : 2 * pair + 2] / figures.mean()
                halves[pair % 2].append(float(figure))
                halves[1 - pair % 2].append(float(other))
    if len(halves[0]) < FEWEST_TURNS:
        return None
    return NoiseFloor(
        ratio=estimate_ratio([halves[0]], [halves[1]]),
        num_pairs=len(halves[0]),
        coefficient_of_variation=max(variations),
    )
