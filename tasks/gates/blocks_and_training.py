"""Does the whole training bear out what the blocks measured? The published speedup and seconds against the training's.

The late half of the training counts, of which those steps around which nobody else used the CPUs: a launch is slow at
first. Both speedups are means with an interval, the training's over equal parts of it, and may differ by both. Cells
train one after another, so that a machine that is slow for a while makes parts alike: their interval allows for it.
They are hours apart at most, but a machine drifts, so that a stated part is allowed besides.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.gates.counted_blocks import find_missing_turns, select_blocks, select_counted
from tasks.records.blocks import BlockWork
from tasks.records.measurement import CellSpeed, MeasurementFile
from tasks.records.outputs import Outputs, RunOutputs

_DRIFT = 0.10
"""Share by which a ratio of two cells may have drifted between blocks and training: so much was seen within hours."""
_MOST_APART = 2.0
"""Times that a cell's seconds per position may differ between blocks and training: load hits both cells alike."""
_SHARPNESS = 2.0
"""Largest over smallest speedup that the training allows; beyond, it refutes nothing."""
_NUM_PARTS, _FEWEST_PARTS = 10, 4
"""Parts that a training's late half is cut into: the fewer, the less a part has in common with the one before."""
_MOST_IN_COMMON = 0.5
"""Correlation of a part with the one before it: ten parts tell no larger one from a trend."""
_FASTER = 10
"""Percentile of parts and blocks that tells more than their middle where the machine was busy now and then."""
_CHANCE, _LEAST_CHANGE = 0.0027, 0.035
"""How rarely chance makes a change within a launch that is taken for one, by Student's t, and the least size of one:
half of an interval's floor."""
_ROUNDING = 1e-6
_CLOCKS_APART = 0.05
"""Share by which all blocks of an arm may have taken another time than their steps: each is timed by both."""
_FEWEST_LAUNCHES = 3
OTHER_SECONDS = frozenset(("other_seconds", "speedup_not_borne_out", "other_files"))
"""Problems of blocks that are right in themselves, where the training, which may be of long ago, took other seconds."""


def check_blocks_against_training(outputs: Outputs, cell: str) -> Finding | None:
    """Check a cell's measured speedup and seconds against its blocks and the whole training."""
    measurement = outputs.measurement
    if measurement is None:
        return None
    first, arm = outputs.params.baseline, measurement.speeds[cell]
    blocks = select_blocks(measurement, cell, phase="speedup")
    if not blocks or not select_blocks(measurement, first, phase="speedup"):
        template = "{cell}: the timed blocks of it and {baseline} left no record"
        return make_unchecked_finding(explain("no_blocks", template, cell=cell, baseline=first))
    timed = [result.seconds / max(result.num_positions, 1) for result in blocks]
    problems = _find_block_mismatches(measurement, arm, first)
    trained = _compute_part_seconds(outputs.runs[cell], measurement.most_others_share)
    if not trained.size:
        return make_finding(problems, _explain_busy(cell)) if problems else make_unchecked_finding(_explain_busy(cell))
    fastest_apart, apart = (float(np.percentile(timed, at) / np.percentile(trained, at)) for at in (_FASTER, 50))
    # A larger step, of weak scaling, may be faster per position, by as much as there are ranks.
    is_larger = arm.global_batch_size > outputs.runs[cell].facts.global_batch_size
    least = 1 / _MOST_APART / (arm.world_size if is_larger else 1)
    finding = explain(
        "other_seconds", "{cell}: a position took {apart:.2f} times as long in the blocks as in the training",
        cell=cell, apart=apart,
    )  # fmt: skip
    if max(fastest_apart, apart) < least or min(fastest_apart, apart) > _MOST_APART:
        problems.append(
            finding.extend(
                "{sentence}, at most {most_apart:g} times apart is believed: what was timed is not what was trained, "
                "or the machine was busy",
                most_apart=_MOST_APART,
            )
        )
    if cell not in measurement.speedups or problems:
        problems[1:1] = _explain_other_code(outputs, measurement, cell) if problems else []
        return make_finding(problems, replace(finding, code="passed"))
    return _compare_speedup(outputs, measurement, arm)


def _compare_speedup(outputs: Outputs, measurement: MeasurementFile, arm: CellSpeed) -> Finding:
    """Hold the speedup against the range in which the training's lies."""
    first, cell, speedup = outputs.params.baseline, arm.cell, measurement.speedups[arm.cell]
    most = measurement.most_others_share
    mine, its = (_compute_part_seconds(outputs.runs[item], most) for item in (cell, first))
    if not its.size:
        return make_unchecked_finding(_explain_busy(first))
    if (change := _compute_change(measurement, cell, first)) is not None:
        return make_unchecked_finding(
            explain(
                "still_changing",
                "{cell}: the speedup changes by {change:percent} from the first to the last turns of a launch, beyond "
                "chance; give measure.burn_in_seconds more",
                cell=cell, change=change,
            )
        )  # fmt: skip
    if (steps := min(len(mine), len(its))) < _FEWEST_PARTS:
        return make_unchecked_finding(
            explain(
                "too_few_steps",
                "{cell}: the late half of {short}'s training has {steps} steps without others on the CPUs, too few to "
                "hold the measured speedup against; train longer, or on an idle machine",
                cell=cell, short=cell if len(mine) == steps else first, steps=steps,
            )
        )  # fmt: skip
    ratio = float(its.mean() / mine.mean())
    of_training = math.hypot(*map(_compute_relative_half_width, (mine, its)))
    allowed = (1 + _DRIFT) * math.exp(math.hypot(of_training, speedup.relative_half_width))
    run, its_run = outputs.runs[cell].facts, outputs.baseline.facts
    is_larger = arm.global_batch_size > run.global_batch_size
    # A larger step computes more between two exchanges: it scales no worse than what was trained, at best as its ranks.
    best = max(ratio, run.world_size / its_run.world_size) if is_larger else ratio
    least, most = ratio / allowed, best * allowed
    beside = (
        " (trained on steps of {trained_batch} samples, timed on {timed_batch}, weak scaling, which scales no worse "
        "and at best as the ranks)"
    ) * is_larger
    allowing = f"the whole training{beside}, the noise of both and a drift of {{drift:percent}} allow"
    known = {
        "cell": cell, "drift": _DRIFT, "trained_batch": run.global_batch_size, "timed_batch": arm.global_batch_size
    }  # fmt: skip
    if not least <= speedup.value <= most:
        return make_failed_finding(
            explain(
                "speedup_not_borne_out",
                "{cell}: measured {measured:ratio}; " + allowing + " {least:ratio} to {most:ratio}: another step was "
                "timed than trained, or the machine changed in between; on an idle machine: make rebench, then make "
                "retrain",
                **known, measured=speedup.value, least=least, most=most,
            ),
            *_explain_other_code(outputs, measurement, cell),
        )  # fmt: skip
    # What the blocks do not know is in the interval that is published with them, and makes no training blunt.
    refutes_nothing = best / ratio * ((1 + _DRIFT) * math.exp(of_training)) ** 2 > _SHARPNESS
    why = "a training on smaller steps says too little" if is_larger else "the training varied too much"
    # No speedup where this gate does not fail: another one may have withheld it.
    finding = explain(
        "training_too_blunt" if refutes_nothing else "passed",
        "{cell}: the measured speedup is {measured_over_trained:.2f} times that of the training; " + allowing
        + " {least:.2f} to {most:.2f} times that" + f", which refutes nothing: {why}" * refutes_nothing,
        **known, measured_over_trained=speedup.value / ratio, least=least / ratio, most=most / ratio,
    )  # fmt: skip
    return make_unchecked_finding(finding) if refutes_nothing else make_finding([], finding)


def _explain_other_code(outputs: Outputs, measurement: MeasurementFile, cell: str) -> list[Reason]:
    """Return that the files of training/ were others when it was trained, which may be why the two disagree."""
    parts = [part for item in (cell, outputs.params.baseline) for part in outputs.runs[item].segments]
    others = [part.title for part in parts if part.facts.code_digests != [measurement.code_digest]]
    return [
        explain(
            "other_files", "{cell}: {segment} was trained by other files of training/ than were timed, whose steps may "
            "take another time: make retrain", cell=cell, segment=other,
        )
        for other in others[:1]
    ]  # fmt: skip


def _find_block_mismatches(measurement: MeasurementFile, arm: CellSpeed, first: str) -> list[Reason]:
    """Return what of the arm's published figures its own blocks do not give, computed here once more."""
    cell = arm.cell
    mine, its = select_counted(measurement, cell), select_counted(measurement, first, beside=cell)
    missing = find_missing_turns(measurement, cell)
    problems = [missing] if missing else []
    if not mine or not its:
        template = "{cell}: a speedup is published, and no block is there that counts"
        return problems or [explain("no_block_counts", template, cell=cell)]
    seconds, tokens = sum(item.seconds for item in mine), sum(item.num_tokens for item in mine)
    # Of the slowest rank.
    of_steps = sum(max(map(sum, item.step_seconds)) for item in mine)
    if abs(seconds / of_steps - 1) > _CLOCKS_APART:
        problems.append(
            explain(
                "clocks_apart",
                "{cell}: its blocks took {seconds:seconds}, their steps {step_seconds:seconds}: the clock did not run "
                "for the steps, or not for them alone",
                cell=cell, seconds=seconds, step_seconds=of_steps,
            )
        )  # fmt: skip
    of = _compute_seconds_per_token if measurement.is_per_token else _compute_seconds_per_step
    for code, template, published, counted in (
        (
            "other_throughput", "{cell}: {published:three_digits} per second published, its blocks had "
            "{counted:three_digits}", arm.tokens_per_second, tokens / seconds,
        ),
        (
            "other_step_time", "{cell}: {published:duration} per step published, its blocks took {counted:duration}",
            arm.step_seconds.value, _compute_mean_of_launches(mine, _compute_seconds_per_step),
        ),
        (
            "other_speedup", "{cell}: {published:ratio} published, its turns beside {baseline} give {counted:ratio}",
            speedup.value if (speedup := measurement.speedups.get(cell)) else None,
            _compute_mean_of_launches(its, of) / _compute_mean_of_launches(mine, of),
        ),
    ):  # fmt: skip
        if published is not None and not math.isclose(published, counted, rel_tol=_ROUNDING):
            problems.append(explain(code, template, cell=cell, baseline=first, published=published, counted=counted))
    return problems


def _compute_mean_of_launches(blocks: Sequence[BlockWork], of: Callable[[BlockWork], float]) -> float:
    """Return the mean over the launches of the mean over their blocks; of all blocks where launches are too few."""
    launches = defaultdict[int, list[float]](list)
    for block in blocks:
        launches[block.launch].append(of(block))
    means = [sum(figures) / len(figures) for figures in launches.values() if len(figures) > 1]
    return sum(means) / len(means) if len(means) >= _FEWEST_LAUNCHES else sum(map(of, blocks)) / len(blocks)


def _compute_seconds_per_step(block: BlockWork) -> float:
    return block.seconds / len(block.steps)


def _compute_seconds_per_token(block: BlockWork) -> float:
    return block.seconds / max(block.num_tokens, 1)


def _explain_busy(cell: str) -> Reason:
    return explain(
        "training_beside_others",
        "{cell}: others used the CPUs in every late step of its training, which says nothing of the blocks; on an idle "
        "machine: make retrain",
        cell=cell,
    )  # fmt: skip


def _compute_part_seconds(run: RunOutputs, most_share: float) -> NDArray[np.float64]:
    """Return the seconds per position in up to 10 equal parts of the late and quiet steps, one after another."""
    steps = run.steps
    number = len(steps.seconds)
    late = np.arange(number // 2 if number >= 2 * _FEWEST_PARTS else 0, number)
    late = late[~(steps.others_share[late] > most_share)]
    parts: Sequence[NDArray[np.int64]] = np.array_split(late, min(_NUM_PARTS, len(late))) if late.size else []
    return np.array([steps.seconds[part].sum() / max(steps.num_positions[part].sum(), 1) for part in parts])


def _compute_relative_half_width(parts: NDArray[np.float64]) -> float:
    """Return the half-width of a 95 % interval of their mean, by Student's t, as a share of the mean.

    Wider by what a part has in common with the one before it, as of an autoregressive process of order 1.
    """
    from scipy.special import stdtrit  # importing it takes a third of a second, which reports need not spend

    apart = parts - parts.mean()
    common = min(max(float(apart[1:] @ apart[:-1]) / (float(apart @ apart) or 1.0), 0.0), _MOST_IN_COMMON)
    error = parts.std(ddof=1) * math.sqrt((1 + common) / (1 - common) / len(parts))
    return float(stdtrit(len(parts) - 1, 0.975) * error / parts.mean())


def _compute_change(measurement: MeasurementFile, cell: str, first: str) -> float | None:
    """Return by how much the speedup changes within a launch, by a line through its turns; None if chance may."""
    of = _compute_seconds_per_token if measurement.is_per_token else _compute_seconds_per_step
    its = {item.turn: of(item) for item in select_counted(measurement, first, beside=cell)}
    launches: dict[int, list[tuple[int, float]]] = {}
    for other in select_counted(measurement, cell):
        launches.setdefault(other.launch, []).append((other.turn, math.log(its[other.turn] / of(other))))
    from scipy.special import stdtrit  # as above

    apart = [np.array(turns) - np.mean(turns, axis=0) for turns in launches.values()]
    x, y = np.concatenate(apart).T
    freedom, spread = len(x) - len(apart) - 1, float(x @ x)
    if freedom < 1 or not spread:
        return None
    slope = float(x @ y) / spread
    error = math.sqrt(float(np.square(y - slope * x).sum()) / freedom / spread)
    lengths = [float(np.ptp(item[:, 0])) for item in apart]
    change = slope * float(np.mean(lengths))
    is_chance = abs(slope) <= stdtrit(freedom, 1 - _CHANCE / 2) * error or abs(change) < _LEAST_CHANGE
    return None if is_chance else change
