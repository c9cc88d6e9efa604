"""The answer in one sentence, and the label that says what kind of comparison gave it."""

import math

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
from tasks.records.gate import State
from tasks.records.measurement import ArmSpeed, Measurement
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results

_LONGEST_REASONS = 240
"""Characters that several cells' reasons may take in the sentence; beyond, it says where they stand."""
_VAGUE = 0.10
"""Relative half-width beyond which an interval says more than the figure in its middle."""


def make_verdict(results: Results) -> str:
    """Return the answer in one sentence: what may be believed of it, how much faster the best cell is, and of what.

    It stands alike wherever an answer is given: on the screen, in the report, results.json, the tracker and the card.
    """
    return f"{'; '.join(list_clauses(results))}."


def list_clauses(results: Results) -> list[str]:
    """Return the clauses of that sentence; the first is the answer by itself."""
    state, gates = name_state(results), count_passed_gates(results)
    if state == "withheld":
        return [_explain_withheld(results)]
    if state == "not measured" or results.measurement is None:
        took = [f"{cell.cell} {wording.format_seconds(cell.seconds_per_epoch)}" for cell in results.cells]
        why = "a speedup takes measure.speed: true" if results.measurement is None else "a speedup needs a second cell"
        told = f"Not measured: {wording.join_names(took)} per epoch, of one training each, which are no speedup"
        return [told, why, *_explain_missing_speedups(results), gates]
    best, *rest = sort_by_merit(results)
    said = _describe_measured(results, results.measurement, best, rest)
    spoilt = [*_warn_above_linear(results), *_warn_slow_ranks(results), *_explain_missing_speedups(results)]
    trust = state.capitalize()
    if state == "unproven":
        decided = best.standing.gates
        trust += f" ({f'“{decided[0]}” was not checked' if decided else 'the interval holds 1'})"
    return [f"{trust}: {said[0]}", *said[1:], *spoilt, gates]


def name_state(results: Results) -> State:
    """Return what may be believed of the answer.

    withheld: a gate failed. unproven: one was not checked, or the interval holds 1 and is wide. not measured: no
    speedup was timed in turns.
    """
    if results.is_withheld:
        return "withheld"
    if not results.answers:
        return "not measured"
    best = sort_by_merit(results)[0]
    speedup, measurement = best.measured_speedup, results.measurement
    if best.standing.state != "proven" or speedup is None or measurement is None:
        return "unproven"
    return "proven" if not speedup.holds_one or is_about_one(speedup, measurement) else "unproven"


def is_about_one(speedup: Estimate, measurement: Measurement) -> bool:
    """Return whether the interval holds 1 and is as narrow as was asked for, so that a larger difference is ruled out.

    What would be worth knowing is params.yaml's to say (measure.half_width); beyond 10 % no interval says that much.
    """
    return speedup.holds_one and speedup.relative_half_width <= min(measurement.half_width_asked, _VAGUE)


def sort_by_merit(results: Results) -> list[CellResults]:
    """Return the cells whose speedup is given, the one that the headline is about first: proven, and the fastest."""
    return sorted(results.answers, key=lambda cell: (cell.standing.state != "proven", -(cell.speedup or 0)))


def _describe_measured(
    results: Results, measurement: Measurement, best: CellResults, others: list[CellResults]
) -> list[str]:
    """Return how much faster by measurement, and then whatever has to be known of it."""
    first, arm = select_cell_arms(measurement)[0], select_arm(measurement, best.cell)
    tied = [cell.cell for cell in others if _ties(best.measured_speedup, cell.measured_speedup)]
    said = [_describe_arm(measurement, first, arm, tied), _describe_place(results)]
    beside = [f"{one.name} {wording.format_ratio(one.speedup.value)}" for one in measurement.beside]
    beside += [
        f"{arm.arm} {wording.format_ratio(arm.speedup.value)}"
        for arm in measurement.arms
        if arm.is_wrapped_baseline and arm.speedup
    ]
    if beside:
        said.append(f"beside {first.cell}: {', '.join(beside)}")
    said += _describe_others(others, measurement)
    every = arm.speedup_of_all_turns
    if arm.speedup and every and not arm.speedup.contains(every.value):
        said.append(f"all turns, loud ones too, give {wording.format_ratio_with_interval(every)}")
    if select_imprecise_arms(measurement):
        asked = wording.format_small_percent(measurement.half_width_asked)
        said.append(f"the interval is wider than the +- {asked} asked for: see How far to trust it")
    return said


def _describe_place(results: Results) -> str:
    """Return on what machine, with how much of it for each process, which model learned from which rows, and when."""
    baseline, machine = results.baseline, results.comparison.machine
    if baseline.device == "cuda":
        what = f"one {machine.gpus[0].name} for each rank"
    else:
        threads = wording.format_plural(baseline.threads_per_rank, "thread")
        what = f"each process with {threads} on {machine.cpu} ({wording.format_plural(machine.num_cpus, 'core')})"
    if baseline.world_size == 1 and baseline.strategy != "single":
        what = f"{baseline.cell} is one rank inside {baseline.strategy}, no plain process; {what}"
    compared = results.comparison
    size = wording.format_parameters(compared.model.num_parameters)
    rows = wording.replace_unprintable(compared.dataset.source)
    return f"{what}, {compared.model.name} ({size}) on {rows}, {compared.trained_at[:10]}"


def _describe_others(others: list[CellResults], measurement: Measurement) -> list[str]:
    """Return the speedups of the cells that the sentence is not about."""
    figures = []
    for cell in others:
        measured, same = cell.measured_speedup, ""
        if measured is None:
            continue
        if measured.holds_one:
            same = ", no measurable difference" if is_about_one(measured, measurement) else ", which may be 1"
        figures.append(
            f"{cell.cell} {wording.format_ratio(cell.speedup)} ({wording.format_interval(measured)}, "
            f"{wording.format_percent(cell.parallel_efficiency)} of linear{same})"
        )
    return [f"others: {', '.join(figures)}"] if figures else []


def _ties(one: Estimate | None, other: Estimate | None) -> bool:
    """Return whether the interval of their ratio holds 1."""
    if one is None or other is None:
        return False
    apart = abs(math.log(one.value / other.value))
    return apart <= math.hypot(*(math.log(each.high / each.low) / 2 for each in (one, other)))


def _warn_above_linear(results: Results) -> list[str]:
    """Return a warning of each cell that is faster than its ranks can make it, beyond what noise does."""
    said = []
    for cell in results.answers:
        measured = cell.measured_efficiency
        if measured is not None and measured.low > 1:
            said.append(
                f"suspect: {cell.cell} is above linear ({wording.format_percent(measured.value)}), which its ranks "
                f"alone cannot make; probably something slowed {results.baseline.cell} down"
            )
    return said


def _explain_missing_speedups(results: Results) -> list[str]:
    """Return which cells are unproven or have no speedup, and why: a clause for all that one gate decided."""
    decided: dict[tuple[str, ...], list[CellResults]] = {}
    for cell in results.cells[1:]:
        if cell.standing.gates and cell.standing.state != "proven":
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


def _describe_arm(measurement: Measurement, first: ArmSpeed, arm: ArmSpeed, tied: list[str]) -> str:
    assert arm.speedup is not None
    speedup = arm.speedup
    named = f"{arm.cell}, in a tie with {wording.join_names(tied)}," if tied else arm.cell
    doubt = (
        f"95 % interval {wording.format_interval(speedup)} of this session, {_format_linear_share(arm, first)}, "
        f"{measurement.scaling} scaling"
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
        answer = f"whether {arm.cell} is faster than {first.cell} cannot be told ({ratio}, "
        if is_about_one(speedup, measurement):
            answer = f"no measurable difference between {arm.cell} and {first.cell} ({ratio}, "
    elif speedup.value < 1:
        answer = f"{named} trains slower than {first.cell} ({wording.format_ratio(speedup.value)}, "
    elif speedup.relative_half_width > _VAGUE:
        ends = f"between {speedup.low:.1f} and {speedup.high:.1f} times"
        answer = f"{named} trains {ends} as fast as {first.cell} (in the mean {wording.format_ratio(speedup.value)}, "
    else:
        answer = f"{named} trains {wording.format_ratio(speedup.value)} as fast as {first.cell} ("
    return f"{answer}{doubt}): {times}"


def _format_linear_share(arm: ArmSpeed, first: ArmSpeed) -> str:
    assert arm.speedup is not None
    share = compute_parallel_efficiency(arm.speedup.value, arm.world_size, first.world_size)
    return f"{wording.format_percent(share)} of linear"


def _explain_withheld(results: Results) -> str:
    failed = [gate for gate in results.gates if gate.verdict == "failed"]
    named = " and ".join(f"“{gate.name}”" for gate in failed)
    numbers = f": {failed[0].compared}" if len(failed) == 1 else ""
    hints = dict.fromkeys(hint for gate in failed for hint in gate.hints)
    more = f" ({'; '.join(hints)})" if hints else ""
    return f"Withheld: {_name_gates(len(failed))} {named} failed{numbers}{more}"


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
