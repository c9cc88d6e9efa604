"""The answer in one sentence, and the label that says what kind of comparison gave it."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from tasks.params.choices import read_unit
from tasks.process.wording import format_interval, format_plural
from tasks.records.estimate import Estimate
from tasks.records.gate import Standing, State
from tasks.records.measurement import WRAPPED, Measurement
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults
from tasks.reporting.render import render_lines
from tasks.reporting.results import Results

VAGUE = 0.10
"""Relative half-width beyond which an interval says more than the figure in its middle."""


def make_verdict(results: Results) -> str:
    """Return the answer in one sentence: what may be believed of it, how much faster the best cell is, and of what.

    It stands alike wherever an answer is given: on the screen, in the report, results.json, the tracker and the card.
    """
    return f"{'; '.join(list_clauses(results))}."


def list_clauses(results: Results) -> list[str]:
    """Return the clauses of that sentence; the first is the answer by itself."""
    functions = (
        count_passed_gates, divide, find_date, find_fastest_process, group_undecided, is_about_one, list_ties,
    )  # fmt: skip
    return render_lines(
        "verdict_lines", results=results, state=name_state(results), ranked=sort_by_merit(results), VAGUE=VAGUE,
        **{function.__name__: function for function in functions},
    )  # fmt: skip


def name_state(results: Results) -> State:
    """Return what may be believed of the answer.

    withheld: a gate failed. unproven: one was not checked, or the interval holds 1 and is wide. not measured: no
    speedup was timed in turns.
    """
    if results.is_withheld:
        return "withheld"
    if not results.answers:
        return "not measured"
    return sort_by_merit(results)[0].standing.state


def judge_speedups(results: Results) -> Results:
    """Return the results in which a cell is unproven, too, whose speedup may be 1: all that names its state reads that.

    Results of an earlier version say what the gates leave of it alone.
    """
    return results.model_copy(update={"cells": [_judge_speedup(cell, results.measurement) for cell in results.cells]})


def _judge_speedup(cell: CellResults, measurement: Measurement | None) -> CellResults:
    speedup = cell.speedup
    if cell.standing.state != "proven" or speedup is None or measurement is None:
        return cell
    if not speedup.holds_one or is_about_one(speedup, measurement):
        return cell
    reason = f"the interval of its speedup, {format_interval(speedup)}, holds 1"
    return cell.model_copy(update={"standing": Standing(state="unproven", reason=reason)})


def is_about_one(speedup: Estimate, measurement: Measurement) -> bool:
    """Return whether the interval holds 1 and is as narrow as was asked for, so that a larger difference is ruled out.

    What would be worth knowing is params.yaml's to say (measure.half_width); beyond 10 % no interval says that much.
    """
    return speedup.holds_one and speedup.relative_half_width <= min(measurement.half_width_asked, VAGUE)


def sort_by_merit(results: Results) -> list[CellResults]:
    """Return the cells whose speedup is given, the one that the headline is about first: proven, and the fastest.

    One that may be slower or faster stands behind those that are faster and before those that are slower.
    """

    def rank(cell: CellResults) -> tuple[bool, float, float]:
        state, speedup = cell.standing.state, cell.speedup.value if cell.speedup else 0.0
        return bool(cell.standing.gates), -speedup if state == "proven" else -1.0, -speedup

    return sorted(results.answers, key=rank)


def divide(speedup: Estimate, other: Estimate) -> Estimate:
    """Return a speedup / another, with the interval of two that are independent."""
    ratio = speedup.value / other.value
    doubt = math.exp(math.hypot(*(math.log(each.high / each.low) / 2 for each in (speedup, other))))
    return Estimate(ratio, ratio / doubt, ratio * doubt)


def list_ties(best: CellResults, others: Sequence[CellResults]) -> list[str]:
    """Return the cells of the best one's state whose speedup is its, as far as the interval of their ratio tells."""
    alike = [cell for cell in others if cell.standing.state == best.standing.state]
    speedups = [(cell.cell, best.speedup, cell.speedup) for cell in alike]
    return [name for name, first, second in speedups if first and second and divide(first, second).holds_one]


def find_fastest_process(measurement: Measurement) -> str | None:
    """Return how one process did the baseline's work fastest, if faster than the baseline; a wrapper is no such way."""
    ways = {name: speedup.value for name, speedup in measurement.beside.items() if not name.endswith(WRAPPED)}
    faster = {name: value for name, value in ways.items() if value > 1}
    return max(faster, key=faster.__getitem__, default=None)


def group_undecided(results: Results) -> list[list[CellResults]]:
    """Return the cells that are unproven or withheld, together those over which the same gates decided."""
    decided = defaultdict[tuple[str, ...], list[CellResults]](list)
    for cell in results.cells[1:]:
        if cell.standing.gates and cell.standing.state != "proven":
            decided[cell.standing.state, *cell.standing.gates].append(cell)
    return list(decided.values())


def find_date(results: Results) -> str:
    """Return the day (UTC) on which the speed was measured, where that is known, or the training began."""
    starts = [reading.started_at for item in results.hardware for reading in item.readings]
    return datetime.fromtimestamp(min(starts), UTC).date().isoformat() if starts else results.comparison.trained_at[:10]


def describe_quiet_turns(results: Results) -> str:
    """Return `20 of 24 turns were quiet`, or from how many to how many were, cell by cell."""
    numbers = sorted(cell.speed.num_quiet_turns for cell in results.cells[1:] or results.cells if cell.speed)
    turns = format_plural(results.measurement.num_turns if results.measurement else 0, "turn")
    if numbers[0] == numbers[-1]:
        return f"{numbers[0]} of {turns} were quiet"
    return f"{numbers[0]} to {numbers[-1]} of {turns}, cell by cell, were quiet"


def count_passed_gates(results: Results) -> str:
    """Return `21 of 22 gates passed, 1 failed`."""
    outcomes = Counter(gate.outcome for gate in results.gates)
    if outcomes["passed"] == outcomes.total():
        return f"all {outcomes.total()} gates passed"
    others = [f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "not checked") if outcomes[outcome]]
    return f"{outcomes['passed']} of {outcomes.total()} gates passed, {', '.join(others)}"


def make_label(outputs: Outputs) -> str | None:
    """Return what kind of demonstration the comparison is and what its figures do not say; None if they say it all.

    It follows from what the stages recorded (sources, weights, device), not from the comparison's name.
    """
    lines = render_lines(
        "label_lines", kind=outputs.raw.kind, rows=outputs.raw.label, model=outputs.base_model,
        is_on_cpu=all(run.facts.device == "cpu" for run in outputs.runs.values()),
        unit="image" if read_unit(outputs.params.workload) == "image" else "text",
    )  # fmt: skip
    return " ".join(lines) or None
