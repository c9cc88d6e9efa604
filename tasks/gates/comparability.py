"""Is it a fair comparison? Checks that the cells did the same work under the same conditions."""

from dataclasses import replace

import numpy as np

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.gates.setting import find_setting_problems
from tasks.params.choices import read_unit
from tasks.process import wording
from tasks.records.ledger import compare_rows, compare_steps
from tasks.records.measurement import DATA_BOUND_SHARE
from tasks.records.outputs import Outputs, RunOutputs, SegmentOutputs

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
    facts = run.facts
    problems = [
        explain(
            f"other_{what.replace(' ', '_')}", "{cell}: {what} {found}, expected {expected}",
            cell=cell, what=what, found=fact, expected=expected,
        )
        for what, fact, expected in (
            ("start weights", facts.base_model_digest[:12], outputs.base_model.digest[:12]),
            ("numerics version", facts.numerics_version, baseline.facts.numerics_version),
            ("machine", facts.machine_digest[:12], outputs.machine.digest[:12]),
            ("samples per optimizer step", facts.global_batch_size, outputs.params.train.global_batch_size),
        )
        if fact != expected
    ]  # fmt: skip
    problems += _find_step_problems(cell, run, first, baseline) + find_setting_problems(outputs, cell)
    return make_finding(
        problems,
        "{cell}: start weights {start_weights}, numerics version {numerics_version}, machine {machine}, "
            "{global_batch_size} samples per step and the learning rate of each of {steps:,} steps as everywhere",
            cell=cell, start_weights=outputs.base_model.digest[:12], numerics_version=baseline.facts.numerics_version,
            machine=outputs.machine.digest[:12], global_batch_size=run.facts.global_batch_size,
            steps=len(run.steps.step), highest_learning_rate=run.steps.learning_rate.max(),
    )  # fmt: skip


def _find_step_problems(cell: str, run: RunOutputs, first: str, baseline: RunOutputs) -> list[Reason]:
    if len(run.steps.step) != len(baseline.steps.step):
        return [
            explain(
                "other_number_of_steps", "{cell}: {steps} optimizer steps, {baseline} {steps_of_baseline}",
                cell=cell, steps=len(run.steps.step), baseline=first, steps_of_baseline=len(baseline.steps.step),
            )
        ]  # fmt: skip
    for what, mine, its in (
        ("learning rate", run.steps.learning_rate, baseline.steps.learning_rate),
        ("samples", run.steps.num_samples, baseline.steps.num_samples),
    ):
        differing = np.flatnonzero(~np.isclose(mine, its, rtol=1e-9, atol=0))
        if differing.size:
            at = int(differing[0])
            return [
                explain(
                    f"other_{what.replace(' ', '_')}",
                    "{cell}: {what} {value:g} at step {step}, {baseline} {value_of_baseline:g}",
                    cell=cell, what=what, value=mine[at], step=baseline.steps.step[at], baseline=first,
                    value_of_baseline=its[at],
                )
            ]  # fmt: skip
    return []


def check_rows_per_step(outputs: Outputs, cell: str) -> Finding | None:
    """Check that each optimizer step learned from the same rows as the baseline's, and padded them alike."""
    if cell == outputs.params.baseline:
        return None
    reference = {(part.facts.range, part.facts.epoch): part for part in outputs.baseline.segments}
    problems, num_steps, num_others = [], 0, 0
    for segment in outputs.runs[cell].segments:
        same = reference.get((segment.facts.range, segment.facts.epoch))
        if same is None:
            continue
        mine, its = segment.ledger, same.ledger
        num_steps += segment.facts.num_steps
        if mine.steps_digest == its.steps_digest:
            problems += _compare_padding(outputs, cell, segment, same)
            continue
        other = compare_steps(segment.samples(), same.samples())
        num_others += other.num_samples
        if mine.num_samples != its.num_samples:
            problems.append(
                explain(
                    "other_number_of_samples", "{where}: {samples} samples, {samples_of_baseline} in the baseline",
                    where=segment.title, samples=mine.num_samples, samples_of_baseline=its.num_samples,
                )
            )  # fmt: skip
        else:
            problems.append(
                explain(
                    "other_rows", "{where}: other rows from step {step} on (first: row {row})",
                    where=segment.title, step=other.first_step, row=other.first_row,
                )
            )  # fmt: skip
    return make_finding(
        problems,
        "{cell}: the rows of each of {steps_compared:,} steps are the baseline's",
            cell=cell, steps_compared=num_steps, samples_in_other_steps=num_others,
    )  # fmt: skip


def _compare_padding(outputs: Outputs, cell: str, segment: SegmentOutputs, same: SegmentOutputs) -> list[Reason]:
    """Return the first step that computed more or fewer positions than the baseline's; smaller micro-batches may."""
    sizes = segment.facts.micro_batch_sizes
    if len(sizes) > 1 or sizes != same.facts.micro_batch_sizes:
        return []
    mine, its = (
        run.steps.num_positions[part.facts.first_step - 1 : part.facts.last_step]
        for run, part in ((outputs.runs[cell], segment), (outputs.baseline, same))
    )
    return [
        explain(
            "other_padding",
            "{where}: {positions:,} positions in step {step}, padding included, {of_baseline:,} in the baseline",
            where=segment.title, positions=int(mine[at]), step=int(at) + segment.facts.first_step,
            of_baseline=int(its[at]),
        )
        for at in (np.flatnonzero(mine != its)[:1] if len(mine) == len(its) else ())
    ]  # fmt: skip


def check_every_sample_once(outputs: Outputs, cell: str) -> Finding:
    """Check in the work ledgers that each segment learned from each row of its range exactly once."""
    problems, run = [], outputs.runs[cell]
    num_samples = num_left_out = num_repeated = num_foreign = 0
    results = [(segment.facts.range, segment.facts.epoch) for segment in run.segments]
    if results != outputs.segments:
        trained, asked_for = (
            ", ".join(f"{part} epoch {epoch}" for part, epoch in segments[:6])
            + f", ... ({len(segments)} segments)" * (len(segments) > 6)
            for segments in (results, outputs.segments)
        )
        template = "{cell}: trained {trained}, asked for {asked_for}"
        problems.append(explain("other_segments", template, cell=cell, trained=trained, asked_for=asked_for))
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
            explain(
                "not_once",
                "{where}: of {rows} rows {left_out_here} were left out and {repeated_here} used more than once; "
                "{foreign_here} rows of no such range ({samples_here} samples in all)",
                where=segment.title, rows=other.num_expected, left_out_here=other.num_left_out,
                repeated_here=other.num_repeated, foreign_here=other.num_foreign, samples_here=ledger.num_samples,
            )
        )  # fmt: skip
    return make_finding(
        problems,
        "{cell}: {samples:,} samples in the work ledgers, every row of every range once per epoch",
            cell=cell, samples=num_samples, left_out=num_left_out, repeated=num_repeated, of_no_such_range=num_foreign,
    )  # fmt: skip


def check_equal_tokens(outputs: Outputs, cell: str) -> Finding:
    """Check the tokens that each segment learned from against what its range holds, and so against the other cells."""
    expected_in_all = sum(outputs.units_of_ranges.values()) * outputs.params.train.epochs
    unit, problems = read_unit(outputs.params.workload), []
    for segment in outputs.runs[cell].segments:
        facts, counted = segment.facts, segment.ledger.num_tokens
        expected = outputs.units_of_ranges.get(facts.range)
        if expected is not None and not counted == facts.num_tokens == expected:
            problems.append(
                explain(
                    "other_tokens",
                    "{where}: {counted:,} {unit}s in the ledger and {reported:,} reported, the range holds {held:,}",
                    where=segment.title, unit=unit, counted=counted, reported=facts.num_tokens, held=expected,
                )
            )  # fmt: skip
    total = _count_tokens(outputs.runs[cell])
    numbers = {"cell": cell, "unit": unit, "tokens": total, "expected": expected_in_all}
    if not problems and total != expected_in_all:
        problems.append(explain("other_total", "{cell}: {tokens:,} {unit}s in all, {expected:,} expected", **numbers))
    finding = make_finding(problems, "{cell}: {expected:,} {unit}s, as many as the ranges hold", **numbers)
    return replace(finding, true_figure=_describe_work(outputs, cell) if problems else None)


def _describe_work(outputs: Outputs, cell: str) -> str | None:
    """Return how many times the baseline's work the cell did; None where it did as much."""
    first, mine, its = outputs.params.baseline, _count_tokens(outputs.runs[cell]), _count_tokens(outputs.baseline)
    return f"{cell} did {mine / its:.2f}x the work of {first}" if its and mine != its else None


def _count_tokens(run: RunOutputs) -> int:
    return sum(segment.ledger.num_tokens for segment in run.segments)


def _sum_rank_seconds(run: RunOutputs) -> float:
    """Return the seconds of the optimizer steps times the number of ranks."""
    return float(run.facts.world_size * run.add_up("train_seconds"))


def check_data_wait(outputs: Outputs, cell: str) -> Finding:
    """Check that the cell waited for data only in a small share of its steps, trained and measured ones."""
    run, measurement, most = outputs.runs[cell], outputs.measurement, DATA_BOUND_SHARE
    share = run.add_up("data_wait_seconds") / run.add_up("train_seconds")
    measured = None if measurement is None else measurement.speeds[cell].data_wait_share
    waited = explain(
        "waited_in_training",
        "{cell} waited for data in {data_wait_share:small_percent} of its step time",
        cell=cell, data_wait_share=share, measured_data_wait_share=measured, most_allowed=most,
    )  # fmt: skip
    problems = [waited] * (share > most)
    waterfalls = measurement.waterfalls if measurement else []
    lost = [
        item.find_lost_seconds("data wait") / item.measured_seconds
        for item in waterfalls
        if item.cell == cell and item.is_data_bound
    ]
    if measured is not None and measured > most:
        template = "{cell} waited for data in {share:small_percent} of its measured blocks"
        problems.append(explain("waited_when_measured", template, cell=cell, share=measured))
    elif lost and lost[0] > most:
        template = "{cell} loses {share:small_percent} of its measured step to waiting for data"
        problems.append(explain("step_lost_to_data", template, cell=cell, share=lost[0]))
    elif lost:
        template = "{cell} or {baseline} waited for data in more than {most:percent} of its measured blocks"
        baseline = outputs.params.baseline
        problems.append(explain("waterfall_data_bound", template, cell=cell, baseline=baseline, most=most))
    when_measured = ", and in {measured_data_wait_share:small_percent} when measured" * (measured is not None)
    return make_finding(
        [
            problem.extend("{sentence}, at most {most_allowed:percent} allowed", most_allowed=most)
            for problem in problems
        ],
        replace(waited.extend("{sentence}" + when_measured), code="passed"),
    )


def check_plausible_speedup(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the cell needed not much less of its ranks' time than the baseline: above linear is not possible."""
    first, run, its = outputs.params.baseline, outputs.runs[cell], outputs.baseline
    if cell == first:
        return None
    taken, of_first = _sum_rank_seconds(run), _sum_rank_seconds(its)
    numbers = {"cell": cell, "baseline": first, "rank_seconds": taken, "rank_seconds_of_baseline": of_first}
    problems = []
    if of_first > _MOST_EFFICIENCY * taken:
        problems.append(
            explain(
                "trained_beyond_linear",
                "{cell} took {rank_seconds:seconds} of its ranks' time (train seconds x ranks), {baseline} "
                "{rank_seconds_of_baseline:seconds}: a parallel efficiency of {efficiency:.2f}, above {most:g} is not "
                "possible; {baseline} probably shared the machine with something else or did more work. "
                + wording.TRAIN_AGAIN,
                **numbers, efficiency=of_first / taken, most=_MOST_EFFICIENCY,
            )
        )  # fmt: skip
    speedup = outputs.measurement and outputs.measurement.speedups.get(cell)
    if speedup and (reached := speedup.parallel_efficiency.value) > _MOST_EFFICIENCY:
        problems.append(
            explain(
                "measured_beyond_linear",
                "{cell} was measured {speedup:ratio} as fast as {baseline}, on {ranks:plural rank} against "
                "{ranks_of_baseline}: a parallel efficiency of {efficiency:.2f}, above {most:g} is not possible. "
                "Measure again on an idle machine: make rebench",
                cell=cell, speedup=speedup.value, baseline=first, ranks=run.facts.world_size,
                ranks_of_baseline=its.facts.world_size, efficiency=reached, most=_MOST_EFFICIENCY,
            )
        )  # fmt: skip
    return make_finding(
        problems,
        # No efficiency here: another gate may have withheld it.
        "time of all ranks together (train seconds x ranks): {baseline} {rank_seconds_of_baseline:seconds}, {cell} "
            "{rank_seconds:seconds}; at least {least_believed:seconds} is believed",
            **numbers, least_believed=of_first / _MOST_EFFICIENCY,
    )  # fmt: skip
