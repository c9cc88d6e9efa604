"""Does the whole training bear out what the blocks measured? The published speedup and seconds against the training's.

The two are hours apart at most, but a machine drifts, so that a stated part of the difference is allowed, and what the
training itself varied by. On a machine that is busy with something else the training says little, and the gate that.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.gates.measured import select_arm
from tasks.process import wording
from tasks.records.blocks import BlockWork
from tasks.records.gate import Finding, make_finding, make_unchecked_finding
from tasks.records.measurement import ArmSpeed, MeasurementFile
from tasks.records.outputs import Outputs, RunOutputs

_DRIFT = 0.10
"""Share by which a ratio of two cells may have drifted between blocks and training: so much was seen within hours."""
_MOST_APART = 2.0
"""Times that a cell's seconds per position may differ between blocks and training: load hits both cells alike."""
_SHARPNESS = 2.0
"""Largest over smallest speedup that the training allows; beyond, it refutes nothing."""
_NUM_PARTS, _FEWEST_PARTS = 20, 8
_QUANTILES = (10, 90)
_ROUNDING = 1e-6
_FEWEST_LAUNCHES = 3


def check_blocks_against_training(outputs: Outputs, cell: str) -> Finding | None:
    """Check a cell's measured speedup and seconds against its blocks and the whole training."""
    measurement = outputs.measurement
    if measurement is None:
        return None
    first, arm = outputs.params.baseline, select_arm(measurement, cell)
    problems = _find_block_mismatches(measurement, arm, first)
    timed = _compute_seconds_per_position(measurement, cell)
    if timed is None:
        return (
            make_unchecked_finding(f"{cell}: its timed blocks left no record")
            if not problems
            else make_finding(problems, otherwise="", numbers={})
        )
    trained = _compute_part_seconds(outputs.runs[cell])
    # Where the machine was busy now and then, the faster part of both tells more than the middle.
    faster, apart = (float(np.percentile(timed, at) / np.percentile(trained, at)) for at in (_QUANTILES[0], 50))
    if max(faster, apart) < 1 / _MOST_APART or min(faster, apart) > _MOST_APART:
        problems.append(
            f"{cell}: a position took {apart:.2f} times as long in the blocks as in the training, at most "
            f"{_MOST_APART:g} times apart is believed: what was timed is not what was trained, or the machine was busy"
        )
    numbers = {"seconds_per_position_against_training": apart}
    if not problems and arm.global_batch_size != outputs.runs[cell].facts.global_batch_size:
        return make_unchecked_finding(
            f"{cell}: timed on steps of {arm.global_batch_size} samples (weak scaling), trained with "
            f"{outputs.runs[cell].facts.global_batch_size}: no training that could bear it out"
        )
    if arm.speedup is None or problems:
        return make_finding(
            problems,
            otherwise=f"{cell}: a position took {apart:.2f} times as long in the blocks as in the training",
            numbers=numbers,
        )
    return _compare_speedup(outputs, measurement, arm, numbers)


def _compare_speedup(
    outputs: Outputs, measurement: MeasurementFile, arm: ArmSpeed, numbers: dict[str, float]
) -> Finding:
    """Hold the speedup against the range in which the training's lies."""
    assert arm.speedup is not None
    first, cell, speedup = outputs.params.baseline, arm.cell, arm.speedup
    mine, its = (_compute_part_seconds(outputs.runs[one]) for one in (cell, first))
    if min(len(mine), len(its)) < _FEWEST_PARTS:
        return make_unchecked_finding(
            f"{cell}: the whole training has {len(mine)} steps, too few to hold the measured speedup against"
        )
    ratio = float(np.median(its) / np.median(mine))
    low = float(np.percentile(its, _QUANTILES[0]) / np.percentile(mine, _QUANTILES[1]))
    high = float(np.percentile(its, _QUANTILES[1]) / np.percentile(mine, _QUANTILES[0]))
    floor = measurement.noise.ratio.relative_half_width if measurement.noise is not None else 0.0
    noise = 1 + max(floor, speedup.relative_half_width)
    least, most = low / (1 + _DRIFT) / noise, high * (1 + _DRIFT) * noise
    numbers |= {"speedup": speedup.value, "of_training": ratio, "least": least, "most": most}
    span = f"{wording.format_ratio(least)} to {wording.format_ratio(most)}"
    told = (
        f"measured {wording.format_ratio(speedup.value)}; the parts of the whole training, its noise and a drift of "
        f"{wording.format_percent(_DRIFT)} allow {span}"
    )
    if not least <= speedup.value <= most:
        return make_finding(
            [
                f"{cell}: {told}: another step was timed than trained, or the machine changed in between; on an idle "
                "machine: dvc repro -f -s measure, then make retrain"
            ],
            otherwise="",
            numbers=numbers,
        )
    if most / least > _SHARPNESS:
        return make_unchecked_finding(f"{cell}: {told}, which refutes nothing: the training varied too much")
    return make_finding([], otherwise=f"{cell}: {told}", numbers=numbers)


def _find_block_mismatches(measurement: MeasurementFile, arm: ArmSpeed, first: str) -> list[str]:
    """Return what of the arm's published figures its own blocks do not give, computed here once more."""
    mine, its = (_select_counted(measurement, one) for one in (arm.cell, first))
    if not mine or not its:
        return []
    problems = []
    seconds, tokens = sum(one.seconds for one in mine), sum(one.num_tokens for one in mine)
    if not math.isclose(arm.tokens_per_second, tokens / seconds, rel_tol=_ROUNDING):
        problems.append(
            f"{arm.cell}: {wording.format_three_digits(arm.tokens_per_second)} per second published, its blocks had "
            f"{wording.format_three_digits(tokens / seconds)}"
        )
    step_seconds = _compute_mean_of_launches(mine, _compute_seconds_per_step)
    if not math.isclose(arm.step_seconds.value, step_seconds, rel_tol=_ROUNDING):
        problems.append(
            f"{arm.cell}: {wording.format_duration(arm.step_seconds.value)} per step published, its blocks took "
            f"{wording.format_duration(step_seconds)}"
        )
    if arm.speedup is None:
        return problems
    of = _compute_seconds_per_token if measurement.scaling == "weak" else _compute_seconds_per_step
    ratio = _compute_mean_of_launches(its, of) / _compute_mean_of_launches(mine, of)
    if not math.isclose(arm.speedup.value, ratio, rel_tol=_ROUNDING):
        problems.append(
            f"{arm.cell}: {wording.format_ratio(arm.speedup.value)} published, its turns beside {first} give "
            f"{wording.format_ratio(ratio)}"
        )
    return problems


def _select_counted(measurement: MeasurementFile, cell: str) -> list[BlockWork]:
    """Return the blocks that the speedup is of: those of quiet turns, of starts with two of them or more.

    All blocks where no cell has a speedup, for want of such.
    """
    blocks = {arm.cell: _select_blocks(measurement, arm.cell, phase="speedup") for arm in measurement.arms}
    if all(arm.speedup is None for arm in measurement.arms if not arm.is_wrapped_baseline):
        return blocks[cell]
    most = measurement.most_others_share
    loud = {one.turn for every in blocks.values() for one in every if _is_loud(one, most)}
    quiet = [one for one in blocks[cell] if one.turn not in loud]
    turns = Counter(one.launch for one in quiet)
    return [one for one in quiet if turns[one.launch] > 1]


def _is_loud(block: BlockWork, most: float) -> bool:
    return (block.others_share or 0.0) > most or (block.has_others_on_gpu and most < 1)


def _compute_mean_of_launches(blocks: Sequence[BlockWork], of: Callable[[BlockWork], float]) -> float:
    """Return the mean over the launches of the mean over their blocks; of all blocks where launches are too few."""
    launches: dict[int, list[float]] = {}
    for one in blocks:
        launches.setdefault(one.launch, []).append(of(one))
    counted = [figures for figures in launches.values() if len(figures) > 1]
    if len(counted) < _FEWEST_LAUNCHES:
        return sum(map(of, blocks)) / len(blocks)
    return sum(sum(figures) / len(figures) for figures in counted) / len(counted)


def _compute_seconds_per_step(block: BlockWork) -> float:
    return block.seconds / len(block.steps)


def _compute_seconds_per_token(block: BlockWork) -> float:
    return block.seconds / max(block.num_tokens, 1)


def _select_blocks(measurement: MeasurementFile, cell: str, *, phase: str | None = None) -> list[BlockWork]:
    """Return the blocks of the cell as it is trained."""
    return [
        block
        for arm in measurement.blocks
        if arm.cell == cell and arm.kind == "as trained" and phase in (None, arm.phase)
        for block in arm.blocks
    ]


def _compute_seconds_per_position(measurement: MeasurementFile, cell: str) -> NDArray[np.float64] | None:
    found = _select_blocks(measurement, cell)
    return np.array([one.seconds / max(one.num_positions, 1) for one in found]) if found else None


def _compute_part_seconds(run: RunOutputs) -> NDArray[np.float64]:
    """Return the seconds per position in up to 20 equal parts of the training, one after another."""
    steps = run.steps
    parts: Sequence[NDArray[np.int64]] = np.array_split(
        np.arange(len(steps.seconds)), min(_NUM_PARTS, len(steps.seconds))
    )
    return np.array([steps.seconds[part].sum() / max(steps.num_positions[part].sum(), 1) for part in parts])
