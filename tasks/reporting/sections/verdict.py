"""The answer, the few figures that it rests on, and what is asked next."""

from typing import Literal

from tasks.process import wording
from tasks.records.arm_figures import (
    compute_baseline_step_seconds,
    describe_quiet_turns,
    find_largest_part,
    select_arm,
    select_cell_arms,
)
from tasks.records.gate import BORNE_OUT, QUIET_TURNS
from tasks.records.measurement import Measurement
from tasks.reporting.blocks import Answers, Block, Charts, KeyFigures, Text
from tasks.reporting.cell_results import CellResults
from tasks.reporting.cost import CellCost, Cost
from tasks.reporting.results import Results
from tasks.reporting.verdict import (
    count_passed_gates,
    is_about_one,
    list_clauses,
    name_state,
    sort_by_merit,
)

TITLE = "Verdict"
_NEARLY_LINEAR = 0.97
_SECONDS_PER_HOUR = 3600.0
_WORTH = "Is it worth it?"
_MOST_TOLD = 4
"""Cells whose seconds are told in one sentence."""
_OF_NOISE = {QUIET_TURNS, BORNE_OUT}
"""Gates that another measurement may satisfy."""
_AS_MANY = 0.02
"""Two numbers of results per hour that are no further apart are called the same."""

_ROLES: dict[str, Literal["answer", "unresolved", "refusal"]] = {"proven": "answer", "withheld": "refusal"}

_Figures = list[tuple[str, str, str]]


def make_lead(results: Results) -> list[Block]:
    """Return what the comparison is, and what kind of demonstration if it is one."""
    description, label = Text(results.description, "lead"), Text(results.label or "", "label")
    return [text for text in (description, label) if text.text]


def make_answer(results: Results) -> Text:
    """Return the whole verdict."""
    return _say(results, results.verdict)


def _say(results: Results, text: str) -> Text:
    return Text(text, _ROLES.get(name_state(results), "unresolved"))


def make_blocks(results: Results) -> list[Block]:
    """Return the verdict, the figures of the cell that it is about, its chart, and answers to what is asked next."""
    measurement = results.measurement if results.answers else None
    figures = _tell_trained(results) if measurement is None else _tell_measured(results, measurement)
    passed = sum(gate.verdict == "passed" for gate in results.gates)
    gates = (f"{passed} of {len(results.gates)}", "gates passed", _tell_gates(results))
    answer, *more = list_clauses(results)
    said = [Text(_make_sentence("; ".join(more)))] * bool(more)
    return [_say(results, f"{answer}."), *said, KeyFigures([*figures, gates]), _answer(results), Charts("verdict")]


def _make_sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


def _answer(results: Results) -> Answers:
    """Return what a reader with a minute asks of the best cell, in one sentence each."""
    if not results.answers:
        return Answers(
            [
                (_WORTH, "That cannot be said yet: no speedup is given.", "gates"),
                ("Can I trust it?", _tell_trust(results), "gates"),
                ("Why not more?", "That takes a speedup. What was timed of a step stands below.", "losses"),
                ("What next?", _tell_next(results), "gates"),
                ("What does it cost?", _tell_seconds(results), "speed"),
            ]
        )
    best = sort_by_merit(results)[0]
    times = best.world_size / results.baseline.world_size
    return Answers(
        [
            (_WORTH, _tell_worth(results, best), "cost"),
            ("Can I trust it?", _tell_trust(results), "gates"),
            (f"Why not {times:g}x?", _tell_losses(results, best), "losses"),
            ("What next?", _tell_next(results), "advice"),
            ("What does it cost?", _tell_cost(results, best), "cost"),
        ]
    )


def _tell_worth(results: Results, best: CellResults) -> str:
    """Return whether one result sooner is worth the device time, and whether many at once are had better otherwise."""
    found, measured = _find_cost(results.cost, best), best.measured_speedup
    if found is None or found.cost_of_speedup is None or measured is None:
        return "That takes a measured speedup."
    base = results.baseline.cell
    if _may_be_slower(results, best):
        return f"That cannot be told yet: {best.cell} may be slower than {base}, or faster."
    devices = f"{_tell_change(found.cost_of_speedup - 1, 'less')} device time"
    if measured.low > 1:
        told = f"Yes for one result sooner: {_tell_change(1 / measured.value - 1, 'less')} time for {devices}."
    elif measured.holds_one:
        told = f"No for one result: no measurable difference in time, for {devices}."
    else:
        told = f"No for one result: {_tell_change(1 / measured.value - 1, 'less')} time, for {devices}."
    if found.num_baseline_jobs is None or found.baseline_results_per_hour is None:
        return told
    gain = found.baseline_results_per_hour / found.results_per_hour - 1
    jobs = f"{wording.format_plural(found.num_baseline_jobs, 'job')} of {base} side by side give"
    if abs(gain) <= _AS_MANY:
        return f"{told} No difference for many: {jobs} as many results per hour."
    return f"{told} {'No' if gain > 0 else 'Yes'} for many: {jobs} {_tell_change(gain, 'fewer')} results per hour."


def _tell_change(share: float, less: str) -> str:
    return f"{wording.format_percent(abs(share))} {'more' if share > 0 else less}"


def _may_be_slower(results: Results, best: CellResults) -> bool:
    """Return whether the interval of the speedup holds 1, and is too wide to say that there is no difference."""
    measured, measurement = best.measured_speedup, results.measurement
    return bool(measured and measurement and measured.holds_one and not is_about_one(measured, measurement))


def _find_cost(cost: Cost | None, cell: CellResults) -> CellCost | None:
    return next((one for one in (cost.cells if cost else []) if one.cell == cell.cell), None)


def _tell_trust(results: Results) -> str:
    """Return what the gates say, and how quiet the machine was."""
    gates = _make_sentence(count_passed_gates(results))
    measurement = results.measurement
    if measurement is None:
        return f"{gates} Speed was not measured in turns: there is one run of each cell."
    fit = f"before measuring, the machine was {measurement.preflight.verdict}"
    return f"{gates} {describe_quiet_turns(measurement)}; {fit}."


def _tell_losses(results: Results, best: CellResults) -> str:
    """Return the largest part of the step that one process does not have."""
    if (best.parallel_efficiency or 0) >= _NEARLY_LINEAR:
        return "It nearly is."
    measurement = results.measurement
    waterfall = next((one for one in (measurement.waterfalls if measurement else []) if one.cell == best.cell), None)
    if waterfall is None:
        return "The step of this cell was not taken apart."
    largest = find_largest_part(waterfall)
    if largest is None or largest.seconds.low <= 0:
        lost = wording.format_percent(1 - (best.parallel_efficiency or 0))
        return f"{lost} is lost over several parts, each too small to tell from noise."
    share = wording.format_small_percent(largest.seconds.value / waterfall.measured_seconds)
    return f"Most of what is lost is {largest.name}: {share} of the step."


def _tell_next(results: Results) -> str:
    """Return the change that gained most, or what to type where there is no answer yet."""
    if QUIET_TURNS in results.failed_gates and _OF_NOISE.issuperset(results.failed_gates):
        return _tell_rebench(results)
    if results.is_withheld:
        return "Mend what the failed gate names, and run the comparison again: docs/gates.md."
    measurement = results.measurement
    if len(results.cells) < 2:
        return "Write a second cell into params.yaml."
    if measurement is None:
        return "Write measure: {speed: true} into params.yaml, and run the comparison again."
    if results.answers and (best := sort_by_merit(results)[0]).standing.state == "unproven":
        if _may_be_slower(results, best) and _OF_NOISE.issuperset(best.standing.gates):
            return _tell_rebench(results)
        return f"Have the unchecked gates decide, “{best.standing.gates[0]}” first: docs/gates.md says what each needs."
    if name_state(results) != "proven":
        return _tell_rebench(results)
    advice = measurement.advice
    gains = [one for one in (advice.tried if advice else []) if one.verdict == "recommended"]
    if gains:
        largest = max(gains, key=lambda one: one.gain.value)
        gain = wording.format_ratio_with_interval(largest.gain)
        return f"{_make_sentence(largest.change)} On {largest.cell} it gained {gain}."
    return "No change that was tried gave a clear gain." if advice and advice.tried else "No change was tried."


def _tell_rebench(results: Results) -> str:
    """Return what to type where others used the machine."""
    measured = results.measurement
    took = f"; measuring took {wording.format_seconds(measured.seconds)} this time" if measured else ""
    return f"Type “make rebench” while nothing else runs on the machine{took}."


def _tell_cost(results: Results, best: CellResults) -> str:
    """Return the device time, and money where a price is known, of one pass over the data."""
    cost, found = results.cost, _find_cost(results.cost, best)
    if cost is None or found is None:
        return "That takes a measured speedup."
    first = cost.cells[0]
    took = [wording.format_seconds(_SECONDS_PER_HOUR * one.device_hours_per_epoch) for one in (found, first)]
    told = f"{took[0]} of device time per epoch against {took[1]}"
    if found.usd_per_epoch is None or first.usd_per_epoch is None:
        return f"{told}; no price is stated."
    return f"{told}: {wording.format_usd(found.usd_per_epoch)} against {wording.format_usd(first.usd_per_epoch)}."


def _tell_seconds(results: Results) -> str:
    """Return the seconds of training that were timed, which are no ratio where a speedup is withheld."""
    took = [f"{cell.cell} {wording.format_seconds(cell.seconds_per_epoch)}" for cell in results.cells[:_MOST_TOLD]]
    return f"{wording.join_names(took)} of training per epoch, as timed. Do not divide them."


def _tell_trained(results: Results) -> _Figures:
    """Return the seconds of each cell's training, which nobody is to divide."""
    return [
        (wording.format_seconds(cell.seconds_per_epoch), "per epoch", f"{cell.cell}, one training")
        for cell in results.cells[:_MOST_TOLD]
    ]


def _tell_measured(results: Results, measurement: Measurement) -> _Figures:
    """Return the figures of the fastest cell while arms took turns."""
    first = select_cell_arms(measurement)[0]
    cell = [*sort_by_merit(results), *results.cells[1:]][0]
    fastest, efficiency = select_arm(measurement, cell.cell), cell.measured_efficiency
    doubt = f"{wording.format_interval(fastest.speedup)} (95 %); " if fastest.speedup else ""
    beside = wording.format_duration(compute_baseline_step_seconds(measurement, fastest))
    steps = f"{fastest.cell}; {first.cell} {beside}"
    return [
        (
            wording.format_ratio(fastest.speedup.value if fastest.speedup else None),
            _name_speedup(cell),
            f"{doubt}{fastest.cell} against {first.cell}",
        ),
        (wording.format_percent(efficiency.value if efficiency else None), "parallel efficiency", "100 % is linear"),
        (wording.format_duration(fastest.step_seconds.value), "per step", steps),
        (wording.format_three_digits(fastest.tokens_per_second), f"{results.unit}s per second", fastest.cell),
    ]


def _name_speedup(cell: CellResults) -> str:
    return "speedup, unproven" if cell.standing.state == "unproven" else "speedup"


def _tell_gates(results: Results) -> str:
    failed = len(results.failed_gates)
    unchecked = sum(gate.verdict == "not checked" for gate in results.gates)
    parts = [f"{failed} failed"] * bool(failed) + [f"{unchecked} not checked"] * bool(unchecked)
    return ", ".join(parts) or "none failed, none left out"
