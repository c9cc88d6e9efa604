"""Is it a fair comparison? Checks that the cells did the same work under the same conditions."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tasks.gates.setting import find_setting_problems
from tasks.params.choices import read_unit
from tasks.process import wording
from tasks.records.arm_figures import find_data_wait, select_arm
from tasks.records.efficiency import estimate_efficiency
from tasks.records.gate import Finding, make_finding
from tasks.records.ledger import compare_rows, compare_steps
from tasks.records.measurement import DATA_BOUND_SHARE
from tasks.records.outputs import Outputs, RunOutputs
from tasks.records.run import RunFile

_MOST_EFFICIENCY = 1.1
"""Parallel efficiency above which a speedup is not believed.

All ranks together run the baseline's micro-batches, on devices like its own: 1.0 is what there is to win. The rest is
for the noise of one run, of which a few percent are usual, and for caches into which a share of the state fits.
"""


def check_same_setting(outputs: Outputs, cell: str) -> Finding | None:
    """Check start weights, code, machine, global batch and the learning rate of every step against the baseline."""
    if not outputs.others:
        return None
    run, baseline, first = outputs.runs[cell], outputs.baseline, outputs.params.baseline
    problems = []
    facts: list[tuple[str, Callable[[RunFile], object], object]] = [
        ("start weights", lambda run: run.base_model_digest[:12], outputs.base_model.digest[:12]),
        ("code", lambda run: run.code_digest[:12], baseline.facts.code_digest[:12]),
        ("machine", lambda run: run.machine_digest[:12], outputs.machine.digest[:12]),
        ("samples per optimizer step", lambda run: run.global_batch_size, outputs.params.train.global_batch_size),
    ]
    for what, fact, expected in facts:
        if fact(run.facts) != expected:
            problems.append(f"{cell}: {what} {fact(run.facts)}, expected {expected}")
    problems += _find_step_problems(cell, run, first, baseline)
    problems += find_setting_problems(outputs, cell)
    return make_finding(
        problems,
        otherwise=f"{cell}: start weights {outputs.base_model.digest[:12]}, code {baseline.facts.code_digest[:12]}, "
        f"machine {outputs.machine.digest[:12]}, {baseline.facts.global_batch_size} samples per step and the learning "
        f"rate of each of {len(baseline.steps.step):,} steps as everywhere",
        numbers={
            "steps": len(run.steps.step),
            "global_batch_size": run.facts.global_batch_size,
            "highest_learning_rate": float(run.steps.learning_rate.max()),
        },
    )


def _find_step_problems(cell: str, run: RunOutputs, first: str, baseline: RunOutputs) -> list[str]:
    if len(run.steps.step) != len(baseline.steps.step):
        return [f"{cell}: {len(run.steps.step)} optimizer steps, {first} {len(baseline.steps.step)}"]
    for what, mine, its in (
        ("learning rate", run.steps.learning_rate, baseline.steps.learning_rate),
        ("samples", run.steps.num_samples, baseline.steps.num_samples),
    ):
        differing = np.flatnonzero(~np.isclose(mine, its, rtol=1e-9, atol=0))
        if differing.size:
            at = int(differing[0])
            return [f"{cell}: {what} {mine[at]:g} at step {baseline.steps.step[at]}, {first} {its[at]:g}"]
    return []


def check_rows_per_step(outputs: Outputs, cell: str) -> Finding | None:
    """Check in the work ledgers that each optimizer step learned from the same rows as the baseline's."""
    if cell == outputs.params.baseline:
        return None
    reference = {(part.facts.range, part.facts.epoch): part for part in outputs.baseline.segments}
    problems, num_steps, num_others = [], 0, 0
    for segment in outputs.runs[cell].segments:
        key = (segment.facts.range, segment.facts.epoch)
        if key not in reference:
            continue
        mine, its = segment.ledger, reference[key].ledger
        num_steps += segment.facts.num_steps
        if mine.steps_digest == its.steps_digest:
            continue
        other = compare_steps(segment.samples(), reference[key].samples())
        num_others += other.num_samples
        if mine.num_samples != its.num_samples:
            found = f"{mine.num_samples} samples, {its.num_samples} in the baseline"
        else:
            found = f"other rows from step {other.first_step} on (first: row {other.first_row})"
        problems.append(f"{cell} {key[0]} epoch {key[1]}: {found}")
    return make_finding(
        problems,
        otherwise=f"{cell}: the rows of each of {num_steps:,} steps are the baseline's",
        numbers={"steps_compared": num_steps, "samples_in_other_steps": num_others},
    )


def check_every_sample_once(outputs: Outputs, cell: str) -> Finding:
    """Check in the work ledgers that each segment learned from each row of its range exactly once."""
    problems, run = [], outputs.runs[cell]
    num_samples = num_left_out = num_repeated = num_foreign = 0
    found = [(segment.facts.range, segment.facts.epoch) for segment in run.segments]
    if found != outputs.segments:
        problems.append(
            f"{cell}: trained {_describe_segments(found)}, asked for {_describe_segments(outputs.segments)}"
        )
    for segment in run.segments:
        name, ledger = segment.facts.range, segment.ledger
        if name not in outputs.row_digests:
            continue
        num_samples += ledger.num_samples
        if ledger.rows_digest == outputs.row_digests[name]:
            continue
        other = compare_rows(segment.samples(), outputs.slices[name].row_ids())
        num_left_out += other.num_left_out
        num_repeated += other.num_repeated
        num_foreign += other.num_foreign
        problems.append(
            f"{cell} {name} epoch {segment.facts.epoch}: of {other.num_expected} rows {other.num_left_out} were "
            f"left out and {other.num_repeated} used more than once; {other.num_foreign} rows of no such range "
            f"({ledger.num_samples} samples in all)"
        )
    return make_finding(
        problems,
        otherwise=f"{cell}: {num_samples:,} samples in the work ledgers, every row of every range once per epoch",
        numbers={
            "samples": num_samples,
            "left_out": num_left_out,
            "repeated": num_repeated,
            "of_no_such_range": num_foreign,
        },
    )


def _describe_segments(segments: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{part} epoch {epoch}" for part, epoch in segments[:6])
    return f"{shown}, ... ({len(segments)} segments)" if len(segments) > 6 else shown


def check_equal_tokens(outputs: Outputs, cell: str) -> Finding:
    """Check the tokens that each segment learned from against what its range holds, and so against the other cells."""
    expected_in_all = sum(outputs.units_of_ranges.values()) * outputs.params.train.epochs
    unit, problems = read_unit(outputs.params.workload), []
    for segment in outputs.runs[cell].segments:
        facts, counted = segment.facts, segment.ledger.num_tokens
        expected = outputs.units_of_ranges.get(facts.range)
        if expected is not None and not counted == facts.num_tokens == expected:
            problems.append(
                f"{cell} {facts.range} epoch {facts.epoch}: {counted:,} {unit}s in the ledger and "
                f"{facts.num_tokens:,} reported, the range holds {expected:,}"
            )
    total = _count_tokens(outputs.runs[cell])
    if not problems and total != expected_in_all:
        problems.append(f"{cell}: {total:,} {unit}s in all, {expected_in_all:,} expected")
    found = make_finding(
        problems,
        otherwise=f"{cell}: {expected_in_all:,} {unit}s, as many as the ranges hold",
        numbers={"tokens": total, "expected": expected_in_all},
    )
    return dataclasses.replace(found, true_figure=_describe_speedup_per_token(outputs, cell) if problems else None)


def _describe_speedup_per_token(outputs: Outputs, cell: str) -> str | None:
    """Return what the speedup is per token learned from, where the cell did another amount of work.

    None where not even that can be believed.
    """
    first, baseline, run = outputs.params.baseline, outputs.baseline, outputs.runs[cell]
    mine, its = _count_tokens(run), _count_tokens(baseline)
    if not its or mine == its:
        return None
    efficiency = mine / _sum_rank_seconds(run) / (its / _sum_rank_seconds(baseline))
    if efficiency > _MOST_EFFICIENCY:
        return None
    return (
        f"{cell} did {mine / its:.2f}x the work of {first}; per unit of work it is "
        f"{efficiency * run.facts.world_size / baseline.facts.world_size:.2f}x as fast"
    )


def _count_tokens(run: RunOutputs) -> int:
    return sum(segment.ledger.num_tokens for segment in run.segments)


def _sum_rank_seconds(run: RunOutputs) -> float:
    """Return the seconds of the optimizer steps times the number of ranks."""
    return run.facts.world_size * sum(segment.facts.train_seconds for segment in run.segments)


def check_data_wait(outputs: Outputs, cell: str) -> Finding:
    """Check that the cell waited for data only in a small share of its steps, trained and measured ones."""
    segments, measurement = outputs.runs[cell].segments, outputs.measurement
    seconds = sum(segment.facts.train_seconds for segment in segments)
    share = sum(segment.facts.data_wait_seconds for segment in segments) / seconds
    most = f"at most {wording.format_percent(DATA_BOUND_SHARE)} allowed"
    waited = f"{cell} waited for data in {wording.format_small_percent(share)} of its step time"
    problems = [] if share <= DATA_BOUND_SHARE else [f"{waited}, {most}"]
    measured = None
    if measurement is not None:
        measured = select_arm(measurement, cell).data_wait_share
        found = find_data_wait(measurement, cell, baseline=outputs.params.baseline)
        problems += [f"{found}, {most}"] if found else []
    return make_finding(
        problems,
        otherwise=waited
        if measured is None
        else f"{waited}, and in {wording.format_small_percent(measured)} when measured",
        numbers={"data_wait_share": share, "measured_data_wait_share": measured, "most_allowed": DATA_BOUND_SHARE},
    )


def check_plausible_speedup(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the cell needed not much less of its ranks' time than the baseline: above linear is not possible."""
    first = outputs.params.baseline
    if cell == first:
        return None
    taken, of_first = _sum_rank_seconds(outputs.runs[cell]), _sum_rank_seconds(outputs.baseline)
    problem = (
        f"{cell} took {wording.format_seconds(taken)} of its ranks' time (train seconds x ranks), {first} "
        f"{wording.format_seconds(of_first)}: a parallel efficiency of {of_first / taken:.2f}, above "
        f"{_MOST_EFFICIENCY:g} is not possible; {first} probably shared the machine with something else or did more "
        f"work. {wording.TRAIN_AGAIN}"
    )
    return make_finding(
        [problem] * (of_first > _MOST_EFFICIENCY * taken) + _find_implausible_speedup(outputs, cell),
        # No efficiency here: another gate may have withheld it.
        otherwise=f"time of all ranks together (train seconds x ranks): {first} {wording.format_seconds(of_first)}, "
        f"{cell} {wording.format_seconds(taken)}; at least {wording.format_seconds(of_first / _MOST_EFFICIENCY)} is "
        "believed",
        numbers={"rank_seconds": taken, "least_believed": of_first / _MOST_EFFICIENCY},
    )


def _find_implausible_speedup(outputs: Outputs, cell: str) -> list[str]:
    """Return what is wrong with the speedup that the stage `measure` found."""
    speedup = None if outputs.measurement is None else select_arm(outputs.measurement, cell).speedup
    if speedup is None:
        return []
    base, size = outputs.baseline.facts.world_size, outputs.runs[cell].facts.world_size
    reached = estimate_efficiency(speedup, size, base).value
    if reached <= _MOST_EFFICIENCY:
        return []
    return [
        f"{cell} was measured {wording.format_ratio(speedup.value)} as fast as {outputs.params.baseline}, on "
        f"{wording.format_plural(size, 'rank')} against {base}: a parallel efficiency of {reached:.2f}, above "
        f"{_MOST_EFFICIENCY:g} is not possible. Measure again on an idle machine: make rebench"
    ]
