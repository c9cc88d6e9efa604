"""The answer in one sentence, and the label that says what kind of comparison gave it."""

from typing import Literal

from tasks.params.choices import read_unit
from tasks.process import wording
from tasks.records.arm_figures import (
    compute_baseline_step_seconds,
    select_arm,
    select_cell_arms,
    select_imprecise_arms,
)
from tasks.records.efficiency import compute_parallel_efficiency
from tasks.records.estimate import Estimate
from tasks.records.gate import QUIET_TURNS
from tasks.records.measurement import ArmSpeed, Measurement
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results

_NOISE_OF_ONE_RUN = 0.05
"""Relative difference below which two single runs are not told apart; a rule of thumb, not measured."""
_LONGEST_REASONS = 240
"""Characters that several cells' reasons may take in the sentence; beyond, it says where they stand."""
_VAGUE = 0.10
"""Relative half-width beyond which an interval says more than the figure in its middle."""


def make_verdict(results: Results) -> str:
    """Return the answer in one sentence: how much faster the best cell is, what is withheld, and which gate does it."""
    return f"{'; '.join(list_clauses(results))}."


def list_clauses(results: Results) -> list[str]:
    """Return the clauses of that sentence; the first is the answer by itself."""
    if results.is_withheld:
        return [_explain_withheld(results)]
    if not results.answers:
        only = results.baseline
        return [
            f"{only.cell} needs {wording.format_seconds(only.seconds_per_epoch)} per epoch",
            "a speedup needs a second cell to compare with",
            count_passed_gates(results),
        ]
    best, *rest = sort_by_merit(results)
    spoilt = [*_warn_above_linear(results), *_warn_slow_ranks(results), *_explain_missing_speedups(results)]
    if results.measurement is not None and results.is_speedup_measured:
        said = [*_describe_measured(results.measurement, best, rest), *spoilt, count_passed_gates(results)]
    else:
        said = [_describe_cell(results, best), *_describe_others(rest, None), *spoilt]
        said.append(count_passed_gates(results))
        said.append(f"one run of each cell{_describe_spread(best)}, so no interval yet")
    return [_prefix_unproven(best) + said[0], *said[1:]]


def is_resolved(results: Results) -> bool:
    """Return whether the best cell's speedup is given, proven and measured on a fit machine, and noise leaves no doubt.

    None is left where the interval lies on one side of 1, or closely around it.
    """
    if results.is_withheld or not results.answers or results.measurement is None or not results.is_speedup_measured:
        return False
    best = sort_by_merit(results)[0]
    if best.standing.state != "proven" or results.measurement.preflight.verdict != "fit to measure":
        return False
    speedup = best.measured_speedup
    return speedup is not None and (not speedup.holds_one or is_about_one(speedup, results.measurement))


def name_state(results: Results) -> Literal["resolved", "not resolved", "withheld"]:
    """Return which of three the answer is; want of quiet turns alone withholds a figure, and leaves the answer open."""
    if results.is_withheld and not is_too_noisy(results):
        return "withheld"
    return "resolved" if is_resolved(results) else "not resolved"


def is_too_noisy(results: Results) -> bool:
    """Return whether nothing but other programs on the machine stands against a speedup."""
    return results.failed_gates == [QUIET_TURNS]


def is_about_one(speedup: Estimate, measurement: Measurement) -> bool:
    """Return whether the interval holds 1 and is as narrow as was asked for, so that a larger difference is ruled out.

    What would be worth knowing is params.yaml's to say (measure.half_width); beyond 10 % no interval says that much.
    """
    return speedup.holds_one and speedup.relative_half_width <= min(measurement.half_width_asked, _VAGUE)


def sort_by_merit(results: Results) -> list[CellResults]:
    """Return the cells whose speedup is given, the one that the headline is about first: proven, and the fastest."""
    return sorted(results.answers, key=lambda cell: (cell.standing.state != "proven", -(cell.speedup or 0)))


def _prefix_unproven(cell: CellResults) -> str:
    return "Unproven: " if cell.standing.state == "unproven" else ""


def _describe_measured(measurement: Measurement, best: CellResults, others: list[CellResults]) -> list[str]:
    """Return how much faster by measurement, and then whatever has to be known of it."""
    first, arm = select_cell_arms(measurement)[0], select_arm(measurement, best.cell)
    wrapped = arm.speedup_over_wrapped
    beside = f"against the same process in a DDP wrapper {wording.format_ratio(wrapped.value)}" if wrapped else ""
    said = [_describe_arm(measurement, first, arm), *[beside] * bool(beside), *_describe_others(others, measurement)]
    if select_imprecise_arms(measurement):
        asked = wording.format_small_percent(measurement.half_width_asked)
        said.append(f"the interval is wider than the +- {asked} asked for: see How far to trust it")
    if measurement.preflight.verdict != "fit to measure":
        said.append("the machine was not fit to measure on: see How far to trust it")
    return said


def _describe_others(others: list[CellResults], measurement: Measurement | None) -> list[str]:
    """Return the speedups of the cells that the sentence is not about."""
    figures = []
    for cell in others:
        measured = cell.measured_speedup
        doubt = f"{wording.format_interval(measured)}, " if measured else ""
        same = ""
        if measured is not None and measurement is not None and measured.holds_one:
            same = ", no measurable difference" if is_about_one(measured, measurement) else ", which may be 1"
        figures.append(
            f"{cell.cell} {wording.format_ratio(cell.speedup)} "
            f"({doubt}{wording.format_percent(cell.parallel_efficiency)} of linear{same})"
        )
    return [f"others: {', '.join(figures)}"] if figures else []


def _warn_above_linear(results: Results) -> list[str]:
    """Return a warning of each cell that is faster than its ranks can make it, beyond what noise does."""
    said = []
    for cell in results.answers:
        share, measured = cell.parallel_efficiency or 0.0, cell.measured_efficiency
        if (measured.low if measured else share - _NOISE_OF_ONE_RUN) > 1:
            said.append(
                f"suspect: {cell.cell} is above linear ({wording.format_percent(share)}), which its ranks alone cannot "
                f"make; probably something slowed {results.baseline.cell} down"
            )
    return said


def _explain_missing_speedups(results: Results) -> list[str]:
    """Return which cells are unproven or have no speedup, and why: a clause for all that one gate decided."""
    decided: dict[tuple[str, ...], list[CellResults]] = {}
    for cell in results.cells[1:]:
        if cell.standing.state != "proven":
            decided.setdefault((cell.standing.state, *cell.standing.gates), []).append(cell)
    return [_explain_standing(cells) for cells in decided.values()]


def _explain_standing(cells: list[CellResults]) -> str:
    """Return `4proc is withheld: “Gate” failed: what it compared`."""
    standing = cells[0].standing
    others = len(standing.gates) - 1
    gates = f"“{standing.gates[0]}”" + (f" and {wording.format_plural(others, 'other gate')}" if others else "")
    verb = "failed" if standing.state == "withheld" else "were not checked" if others else "was not checked"
    reasons = "; ".join(dict.fromkeys(cell.standing.reason or "" for cell in cells))
    told = f": {reasons}" if len(cells) == 1 or len(reasons) <= _LONGEST_REASONS else ", see Gates"
    named = wording.join_names([cell.cell for cell in cells])
    return f"{named} {'is' if len(cells) == 1 else 'are'} {standing.state}: {gates} {verb}{told}"


def _warn_slow_ranks(results: Results) -> list[str]:
    """Return what a slow rank does to each cell that has one: its speedup says something about that rank."""
    said = []
    for cell in results.cells:
        slowest = cell.slowest_rank
        if slowest is not None and slowest.is_straggler and not cell.is_withheld:
            said.append(
                f"{cell.cell} is not clean: rank {slowest.rank} took {wording.format_ratio(slowest.times_as_long)} as "
                "long as the others for the same work, and they waited for it "
                f"{wording.format_percent(slowest.waiting_share)} of the time"
            )
    return said


def _describe_arm(measurement: Measurement, first: ArmSpeed, arm: ArmSpeed) -> str:
    assert arm.speedup is not None
    speedup = arm.speedup
    doubt = (
        f"95 % interval {wording.format_interval(speedup)}, {_format_linear_share(arm, first)}, {measurement.scaling} "
        "scaling"
    )
    if measurement.scaling == "strong":
        times = (
            f"{wording.format_duration(arm.step_seconds.value)} against "
            f"{wording.format_duration(compute_baseline_step_seconds(measurement, arm))} per step"
        )
    else:
        rates = [wording.format_three_digits(one.samples_per_second) for one in (arm, first)]
        times = f"{rates[0]} against {rates[1]} samples per second"
    if speedup.holds_one:
        ratio = wording.format_ratio(speedup.value)
        answer = f"Whether {arm.cell} is faster than {first.cell} cannot be told ({ratio}, "
        if is_about_one(speedup, measurement):
            answer = f"No measurable difference between {arm.cell} and {first.cell} ({ratio}, "
    elif speedup.value < 1:
        answer = f"{arm.cell} trains slower than {first.cell} ({wording.format_ratio(speedup.value)}, "
    elif speedup.relative_half_width > _VAGUE:
        ends = f"between {speedup.low:.1f} and {speedup.high:.1f} times"
        answer = (
            f"{arm.cell} trains {ends} as fast as {first.cell} (in the mean {wording.format_ratio(speedup.value)}, "
        )
    else:
        answer = f"{arm.cell} trains {wording.format_ratio(speedup.value)} as fast as {first.cell} ("
    return f"{answer}{doubt}): {times}"


def _format_linear_share(arm: ArmSpeed, first: ArmSpeed) -> str:
    assert arm.speedup is not None
    share = compute_parallel_efficiency(arm.speedup.value, arm.world_size, first.world_size)
    return f"{wording.format_percent(share)} of linear"


def _describe_spread(cell: CellResults) -> str:
    """Return the spread over the segments, where the cell has some."""
    spread = cell.speedup_of_segments
    if spread is None:
        return ""
    return f" (single segments {wording.format_ratio(spread.lowest)} to {wording.format_ratio(spread.highest)})"


def _describe_cell(results: Results, cell: CellResults) -> str:
    assert cell.whole.speedup is not None
    baseline = results.baseline
    times = (
        f"{wording.format_seconds(cell.seconds_per_epoch)} against "
        f"{wording.format_seconds(baseline.seconds_per_epoch)} per epoch"
    )
    figure = (
        f"{wording.format_ratio(cell.whole.speedup)}, {wording.format_percent(cell.whole.parallel_efficiency)} of "
        "linear"
    )
    if abs(cell.whole.speedup - 1) <= _NOISE_OF_ONE_RUN:
        return f"No clear difference between {cell.cell} and {baseline.cell} at equal work ({figure}): {times}"
    if cell.whole.speedup < 1:
        return f"{cell.cell} trains slower than {baseline.cell} at equal work ({figure}): {times}"
    return (
        f"{cell.cell} trains {wording.format_ratio(cell.whole.speedup)} as fast as {baseline.cell} "
        f"({wording.format_percent(cell.whole.parallel_efficiency)} of linear) at equal work: {times}"
    )


def _explain_withheld(results: Results) -> str:
    failed = [gate for gate in results.gates if gate.verdict == "failed"]
    named = " and ".join(f"“{gate.name}”" for gate in failed)
    numbers = f": {failed[0].compared}" if len(failed) == 1 else ""
    hints = dict.fromkeys(hint for gate in failed for hint in gate.hints)
    more = f" ({'; '.join(hints)})" if hints else ""
    return f"Speedup withheld: {_name_gates(len(failed))} {named} failed{numbers}{more}"


def _name_gates(number: int) -> str:
    return "the gate" if number == 1 else f"the {number} gates"


def count_passed_gates(results: Results) -> str:
    verdicts = [gate.verdict for gate in results.gates]
    if verdicts.count("passed") == len(verdicts):
        return f"all {len(verdicts)} gates passed"
    others = [f"{number} {verdict}" for verdict in ("failed", "not checked") if (number := verdicts.count(verdict))]
    return f"{verdicts.count('passed')} of {len(verdicts)} gates passed, {', '.join(others)}"


def make_label(outputs: Outputs) -> str | None:
    """Return what kind of demonstration the comparison is and what its figures do not say; None if they say it all.

    Told by what the stages recorded (sources, weights, device), not by the comparison's name.
    """
    is_builtin = outputs.raw.kind == "builtin"
    has_random_weights = outputs.base_model.is_random_weights
    is_on_cpu = all(run.facts.device == "cpu" for run in outputs.runs.values())
    if not (is_builtin or has_random_weights or is_on_cpu):
        return None
    size = wording.format_parameters(outputs.base_model.num_parameters)
    model = f"a model of {size} that starts from random weights" if has_random_weights else f"a model of {size}"
    where = " on the CPU" if is_on_cpu else ""
    kind = "built-in demonstration" if is_builtin else "comparison"
    rows = "images" if read_unit(outputs.params.workload) == "image" else "texts"
    sentences = [f"This {kind} trains {model}{where}; its {rows} are {wording.replace_unprintable(outputs.raw.label)}."]
    if is_on_cpu:
        sentences.append("Its speedup says something about the cores of this machine, and nothing about GPUs.")
    if has_random_weights:
        sentences.append("Its loss shows that training works, not what a useful model reaches.")
    return " ".join(sentences)
