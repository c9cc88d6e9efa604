"""Is it a fair comparison? Checks that the cells did the same work under the same conditions."""

import dataclasses
from collections.abc import Callable

import numpy as np

from tasks.reporting import wording
from tasks.reporting.gate import Finding, Number, finding, not_checked
from tasks.reporting.ledger import compare_rows, compare_steps, digest_of_rows
from tasks.reporting.measured import efficiency
from tasks.reporting.outputs import Outputs, RunOutputs
from tasks.reporting.stage_files import RunFile
from tasks.stage.choices import unit_of

_DATA_BOUND_SHARE = 0.05
_MOST_EFFICIENCY = 1.1
"""Parallel efficiency above which a speedup is not believed.

Every rank holds the whole model and runs the same micro-batches as the baseline, so there is no cache to win: 1.0 is
the most that can be. The rest is for the noise of one run, of which a few percent are usual.
"""


def same_setting(outputs: Outputs) -> Finding:
    """Check start weights, code, machine, global batch and the learning rate of every step against the baseline."""
    if not outputs.others:
        return not_checked("only one cell")
    baseline, first = outputs.baseline, outputs.params.baseline
    problems = []
    facts: list[tuple[str, Callable[[RunFile], object], object]] = [
        ("start weights", lambda run: run.base_model_digest[:12], outputs.base_model.digest[:12]),
        ("code", lambda run: run.code_digest[:12], baseline.facts.code_digest[:12]),
        ("machine", lambda run: run.machine_digest[:12], outputs.machine.digest[:12]),
        ("samples per optimizer step", lambda run: run.global_batch_size, outputs.params.train.global_batch_size),
    ]
    for cell, run in outputs.runs.items():
        for what, fact, expected in facts:
            if fact(run.facts) != expected:
                problems.append(f"{cell}: {what} {fact(run.facts)}, expected {expected}")
        problems += _step_problems(cell, run, first, baseline)
    return finding(
        problems,
        otherwise=f"start weights {outputs.base_model.digest[:12]}, code {baseline.facts.code_digest[:12]}, machine "
        f"{outputs.machine.digest[:12]}, {baseline.facts.global_batch_size} samples per step and the learning rate "
        f"of each of {len(baseline.steps.step):,} steps are equal in all {len(outputs.runs)} cells",
        numbers={
            "steps": outputs.per_cell(lambda run: len(run.steps.step)),
            "global_batch_size": outputs.per_cell(lambda run: run.facts.global_batch_size),
            "highest_learning_rate": outputs.per_cell(lambda run: float(run.steps.learning_rate.max())),
        },
    )


def _step_problems(cell: str, run: RunOutputs, first: str, baseline: RunOutputs) -> list[str]:
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


def same_rows_per_step(outputs: Outputs) -> Finding:
    """Check in the work ledgers that each optimizer step learned from the same rows in every cell."""
    if not outputs.others:
        return not_checked("only one cell")
    reference = {(part.facts.range, part.facts.epoch): part for part in outputs.baseline.segments}
    problems, num_steps = [], 0
    num_others: dict[str, Number] = dict.fromkeys(outputs.runs, 0)
    for cell, run in outputs.others.items():
        for segment in run.segments:
            key = (segment.facts.range, segment.facts.epoch)
            if key not in reference:
                continue
            mine, its = segment.ledger, reference[key].ledger
            num_steps += segment.facts.num_steps
            if mine.steps_digest == its.steps_digest:
                continue
            other = compare_steps(segment.samples(), reference[key].samples())
            num_others[cell] = (num_others[cell] or 0) + other.num_samples
            if mine.num_samples != its.num_samples:
                found = f"{mine.num_samples} samples, {its.num_samples} in the baseline"
            else:
                found = f"other rows from step {other.first_step} on (first: row {other.first_row})"
            problems.append(f"{cell} {key[0]} epoch {key[1]}: {found}")
    return finding(
        problems,
        otherwise=f"the rows of each of {num_steps:,} steps are the baseline's",
        numbers={"steps_compared": num_steps, "samples_in_other_steps": list(num_others.values())},
    )


def every_sample_once(outputs: Outputs) -> Finding:
    """Check in the work ledgers that each segment learned from each row of its range exactly once."""
    problems = []
    counted: dict[str, list[Number]] = {"samples": [], "left_out": [], "repeated": [], "of_no_such_range": []}
    slices = {str(part): outputs.slices[str(part)] for part in outputs.params.ranges}
    expected = {name: digest_of_rows(part.row_ids()) for name, part in slices.items()}
    for cell, run in outputs.runs.items():
        sums = np.zeros(len(counted), dtype=np.int64)
        found = [(segment.facts.range, segment.facts.epoch) for segment in run.segments]
        if found != outputs.segments:
            problems.append(f"{cell}: trained {_listed(found)}, asked for {_listed(outputs.segments)}")
        for segment in run.segments:
            name, ledger = segment.facts.range, segment.ledger
            if name not in slices:
                continue
            sums[0] += ledger.num_samples
            if ledger.rows_digest == expected[name]:
                continue
            other = compare_rows(segment.samples(), slices[name].row_ids())
            sums[1:] += [other.num_left_out, other.num_repeated, other.num_foreign]
            problems.append(
                f"{cell} {name} epoch {segment.facts.epoch}: of {other.num_expected} rows {other.num_left_out} were "
                f"left out and {other.num_repeated} used more than once; {other.num_foreign} rows of no such range "
                f"({ledger.num_samples} samples in all)"
            )
        for name, number in zip(counted, sums.tolist(), strict=True):
            counted[name].append(number)
    return finding(
        problems,
        otherwise=f"{sum(number or 0 for number in counted['samples']):,} samples in the work ledgers: every row of "
        "every range once per epoch, in every cell",
        numbers=counted,
    )


def _listed(segments: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{part} epoch {epoch}" for part, epoch in segments[:6])
    return f"{shown}, ... ({len(segments)} segments)" if len(segments) > 6 else shown


def equal_tokens(outputs: Outputs) -> Finding:
    """Check the tokens that each segment learned from against what its range holds, and so across the cells."""
    seq_len = outputs.params.train.seq_len
    slices = {str(part): outputs.slices[str(part)] for part in outputs.params.ranges}
    per_range = {name: part.num_units(seq_len, workload=outputs.params.workload) for name, part in slices.items()}
    expected_in_all = sum(per_range.values()) * outputs.params.train.epochs
    problems, totals, unit = [], {}, unit_of(outputs.params.workload)
    for cell, run in outputs.runs.items():
        totals[cell] = sum(segment.ledger.num_tokens for segment in run.segments)
        for segment in run.segments:
            facts, counted = segment.facts, segment.ledger.num_tokens
            expected = per_range.get(facts.range)
            if expected is not None and not counted == facts.num_tokens == expected:
                problems.append(
                    f"{cell} {facts.range} epoch {facts.epoch}: {counted:,} {unit}s in the ledger and "
                    f"{facts.num_tokens:,} reported, the range holds {expected:,}"
                )
        if not problems and totals[cell] != expected_in_all:
            problems.append(f"{cell}: {totals[cell]:,} {unit}s in all, {expected_in_all:,} expected")
    found = finding(
        problems,
        otherwise=f"{expected_in_all:,} {unit}s in every cell, as many as the ranges hold",
        numbers={"tokens": list(totals.values()), "expected": expected_in_all},
    )
    return dataclasses.replace(found, true_figure=_per_token(outputs, totals) if problems else None)


def _per_token(outputs: Outputs, totals: dict[str, int]) -> str | None:
    """Return what the speedups are per token learned from, for the cells that did another amount of work.

    None where not even those can be believed.
    """
    first = outputs.params.baseline
    rank_seconds = {cell: _rank_seconds(run) for cell, run in outputs.runs.items()}
    told = []
    for cell, run in outputs.others.items():
        if not totals[first] or totals[cell] == totals[first]:
            continue
        efficiency = totals[cell] / rank_seconds[cell] / (totals[first] / rank_seconds[first])
        if efficiency > _MOST_EFFICIENCY:
            return None
        told.append(
            f"{cell} did {totals[cell] / totals[first]:.2f}x the work of {first}; per unit of work it is "
            f"{efficiency * run.facts.world_size / outputs.baseline.facts.world_size:.2f}x as fast"
        )
    return "; ".join(told) or None


def _rank_seconds(run: RunOutputs) -> float:
    """Return the seconds of the optimizer steps times the number of ranks."""
    return run.facts.world_size * sum(segment.facts.train_seconds for segment in run.segments)


def not_data_bound(outputs: Outputs) -> Finding:
    """Check that no cell waited for data for more than a small share of its steps."""
    problems, seen = [], []
    shares: list[Number] = []
    for cell, run in outputs.runs.items():
        seconds = sum(segment.facts.train_seconds for segment in run.segments)
        share = sum(segment.facts.data_wait_seconds for segment in run.segments) / seconds
        shares.append(share)
        seen.append(f"{cell} {wording.small_percent(share)}")
        if not share <= _DATA_BOUND_SHARE:
            problems.append(
                f"{cell} waited for data in {wording.small_percent(share)} of its step time, at most "
                f"{wording.percent(_DATA_BOUND_SHARE)} allowed"
            )
    return finding(
        problems,
        otherwise=f"share of step time spent waiting for data: {', '.join(seen)}",
        numbers={"data_wait_shares": shares, "most_allowed": _DATA_BOUND_SHARE},
    )


def speedup_is_plausible(outputs: Outputs) -> Finding:
    """Check that no cell needed much less of its ranks' time than the baseline: more than linear is not possible."""
    if not outputs.others:
        return not_checked("only one cell")
    first = outputs.params.baseline
    taken = {cell: _rank_seconds(run) for cell, run in outputs.runs.items()}
    problems = [
        f"{cell} took {wording.seconds(taken[cell])} of its ranks' time (train seconds x ranks), {first} "
        f"{wording.seconds(taken[first])}: a parallel efficiency of {taken[first] / taken[cell]:.2f}, above "
        f"{_MOST_EFFICIENCY:g} is not possible; {first} probably shared the machine with something else or did more "
        f"work. {wording.TRAIN_AGAIN}"
        for cell in outputs.others
        if taken[first] > _MOST_EFFICIENCY * taken[cell]
    ]
    return finding(
        problems + _implausible_by_measurement(outputs, first),
        # No efficiency here: another gate may have withheld it.
        otherwise="time of all ranks together (train seconds x ranks): "
        f"{', '.join(f'{cell} {wording.seconds(seconds)}' for cell, seconds in taken.items())}; at least "
        f"{wording.seconds(taken[first] / _MOST_EFFICIENCY)} is believed",
        numbers={"rank_seconds": list(taken.values()), "least_believed": taken[first] / _MOST_EFFICIENCY},
    )


def _implausible_by_measurement(outputs: Outputs, first: str) -> list[str]:
    """Return what is wrong with the speedups that the stage `measure` found."""
    measurement = outputs.measurement
    base = outputs.baseline.facts.world_size
    problems = []
    for arm in [] if measurement is None else measurement.arms:
        if arm.speedup is None:
            continue
        reached = efficiency(arm.speedup, arm.world_size, base).value
        if not reached <= _MOST_EFFICIENCY:
            problems.append(
                f"{arm.arm} was measured {wording.ratio(arm.speedup.value)} as fast as {first}, on "
                f"{wording.counted(arm.world_size, 'rank')} against {base}: a parallel efficiency of {reached:.2f}, "
                f"above {_MOST_EFFICIENCY:g} is not possible. "
                "Measure again on an idle machine: dvc repro -f -s measure, then make compare"
            )
    return problems


def own_device(outputs: Outputs) -> Finding:
    """Check that no rank shares a GPU or, on the CPU, a core with another."""
    problems, seen = [], []
    numbers: dict[str, list[Number]] = {"needed": [], "there": []}
    for cell, run in outputs.runs.items():
        facts = run.facts
        # Of several nodes, each with as many ranks, the one that has least.
        ranks = facts.world_size // facts.num_nodes
        if facts.device == "cuda":
            there = min([len(outputs.machine.gpus), *(len(node.gpus) for node in facts.nodes)])
            needed, what = ranks, "GPUs"
        else:
            there = min([outputs.machine.num_cpus, *(node.num_cpus for node in facts.nodes)])
            needed, what = ranks * facts.threads_per_rank, "CPUs"
        if facts.num_nodes > 1:
            what += " per node"
        numbers["needed"].append(needed)
        numbers["there"].append(there)
        seen.append(f"{cell} {needed} of {there} {what}")
        if needed > there:
            problems.append(
                f"{cell} needs {needed} {what} and shares {there}: a cell whose ranks share devices says nothing "
                "about scaling"
            )
    return finding(problems, otherwise=", ".join(seen), numbers=numbers)
