"""Does the whole training bear out what the blocks measured? The published speedup and seconds against the training's.

The two are hours apart at most, but a machine drifts, so that a stated part of the difference is allowed, and what the
training itself varied by. On a machine that is busy with something else the training says little, and the gate that.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.gates.measured import select_arm
from tasks.process import wording
from tasks.records.gate import Finding, make_finding, make_unchecked_finding
from tasks.records.measurement import ArmSpeed, BlockWork, MeasurementFile
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
_OTHER_MEDIAN = 1.05
"""Times that the median of the turns' ratios may be off the published ratio of medians, beside its interval."""


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
    noise = 1 + max(measurement.noise.ratio.relative_half_width, speedup.relative_half_width)
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
    """Return what of the arm's published figures its own blocks do not give."""
    mine, its = (_select_blocks(measurement, one, phase="speedup") for one in (arm.cell, first))
    if not mine or not its:
        return []
    problems = []
    seconds, tokens = sum(one.seconds for one in mine), sum(one.num_tokens for one in mine)
    if not math.isclose(arm.tokens_per_second, tokens / seconds, rel_tol=_ROUNDING):
        problems.append(
            f"{arm.cell}: {wording.format_three_digits(arm.tokens_per_second)} per second published, its blocks had "
            f"{wording.format_three_digits(tokens / seconds)}"
        )
    steps = [one.seconds / len(one.steps) for one in mine]
    if not min(steps) <= arm.step_seconds.value <= max(steps):
        problems.append(
            f"{arm.cell}: {wording.format_duration(arm.step_seconds.value)} per step published, no block took that"
        )
    if arm.speedup is None:
        return problems
    # By turns: both ran the same steps, or, in weak scaling, as many tokens as are counted.
    by_turn = {one.turn: _compute_seconds_per_token(one) for one in its}
    ratio = float(
        np.median([by_turn[one.turn] / _compute_seconds_per_token(one) for one in mine if one.turn in by_turn])
    )
    allowed = _OTHER_MEDIAN * (1 + 2 * arm.speedup.relative_half_width)
    if not ratio / allowed <= arm.speedup.value <= ratio * allowed:
        problems.append(
            f"{arm.cell}: {wording.format_ratio(arm.speedup.value)} published, its turns beside {first} give "
            f"{wording.format_ratio(ratio)}"
        )
    return problems


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
