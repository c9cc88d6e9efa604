"""The answer in one sentence, and the label that says what kind of comparison gave it."""

from tasks.gates.measured import arm_of, cells_of, too_wide
from tasks.gates.statistics import NOISE_OF_ONE_RUN, parallel_efficiency
from tasks.params.choices import unit_of
from tasks.process import wording
from tasks.records.measurement import ArmSpeed, Measurement
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results


def verdict_of(results: Results) -> str:
    """Return the answer in one sentence: how much faster the best cell is, what is withheld, and which gate does it."""
    if results.is_withheld:
        return _all_withheld(results)
    if not results.answers:
        only = results.baseline
        return (
            f"{only.cell} needs {wording.seconds(only.seconds_per_epoch)} per epoch; a speedup needs a second cell to "
            f"compare with; {_gates_passed(results)}."
        )
    best, *others = by_merit(results)
    spoilt = [*_above_linear(results), *_not_clean(results), *_not_given(results)]
    if results.measurement is not None and results.is_speedup_measured:
        said = [*_measured(results.measurement, best, others), *spoilt, _gates_passed(results)]
        return f"{_unproven(best)}{'; '.join(said)}."
    said = [_one_answer(results, best), *_beside(others), *spoilt, _gates_passed(results)]
    return f"{_unproven(best)}{'; '.join(said)}; one run of each cell{_segments(best)}, so no interval yet."


def by_merit(results: Results) -> list[CellResults]:
    """Return the cells whose speedup is given, the one that the headline is about first: proven, and the fastest."""
    return sorted(results.answers, key=lambda cell: (cell.standing.state != "proven", -(cell.speedup or 0)))


def _unproven(cell: CellResults) -> str:
    return "Unproven: " if cell.standing.state == "unproven" else ""


def _measured(measurement: Measurement, best: CellResults, others: list[CellResults]) -> list[str]:
    """Return how much faster by measurement, and then whatever has to be known of it."""
    first = cells_of(measurement)[0]
    said = [_one_measured(measurement, first, arm_of(measurement, best.cell)), *_beside(others)]
    if too_wide(measurement):
        asked = wording.small_percent(measurement.half_width_asked)
        said.append(f"the interval is wider than the +- {asked} asked for: see How far to trust it")
    if measurement.preflight.verdict != "fit to measure":
        said.append("the machine was not fit to measure on: see Preflight")
    return said


def _beside(others: list[CellResults]) -> list[str]:
    """Return the speedups of the cells that the sentence is not about."""
    figures = []
    for cell in others:
        measured = cell.measured_speedup
        doubt = f"{wording.interval(measured)}, " if measured else ""
        same = ", no measurable difference" if measured and measured.holds_one else ""
        figures.append(
            f"{cell.cell} {wording.ratio(cell.speedup)} ({doubt}{wording.percent(cell.parallel_efficiency)} of linear"
            f"{same})"
        )
    return [f"others: {', '.join(figures)}"] if figures else []


def _above_linear(results: Results) -> list[str]:
    """Return a warning of each cell that is faster than its ranks can make it, beyond what noise does."""
    said = []
    for cell in results.answers:
        share, measured = cell.parallel_efficiency or 0.0, cell.measured_efficiency
        if (measured.low if measured else share - NOISE_OF_ONE_RUN) > 1:
            said.append(
                f"suspect: {cell.cell} is above linear ({wording.percent(share)}), which its ranks alone cannot make; "
                f"probably something slowed {results.baseline.cell} down"
            )
    return said


def _not_given(results: Results) -> list[str]:
    """Return which cells are unproven or have no speedup, and why: a clause for all that one gate decided."""
    decided: dict[tuple[str, ...], list[CellResults]] = {}
    for cell in results.cells[1:]:
        if cell.standing.state != "proven":
            decided.setdefault((cell.standing.state, *cell.standing.gates), []).append(cell)
    return [_why(cells) for cells in decided.values()]


def _why(cells: list[CellResults]) -> str:
    """Return `4proc is withheld: “Gate” failed: what it compared`."""
    standing = cells[0].standing
    others = len(standing.gates) - 1
    gates = f"“{standing.gates[0]}”" + (f" and {wording.counted(others, 'other gate')}" if others else "")
    verb = "failed" if standing.state == "withheld" else "were not checked" if others else "was not checked"
    reasons = dict.fromkeys(cell.standing.reason or "" for cell in cells)
    named = wording.listed([cell.cell for cell in cells])
    return f"{named} {'is' if len(cells) == 1 else 'are'} {standing.state}: {gates} {verb}: {'; '.join(reasons)}"


def _not_clean(results: Results) -> list[str]:
    """Return what a slow rank does to each cell that has one: its speedup says something about that rank."""
    said = []
    for cell in results.cells:
        slowest = cell.slowest_rank
        if slowest is not None and slowest.is_straggler and not cell.is_withheld:
            said.append(
                f"{cell.cell} is not clean: rank {slowest.rank} took {wording.ratio(slowest.times_as_long)} as long as "
                f"the others for the same work, and they waited for it {wording.percent(slowest.waiting_share)} of "
                "the time"
            )
    return said


def _one_measured(measurement: Measurement, first: ArmSpeed, arm: ArmSpeed) -> str:
    assert arm.speedup is not None
    speedup = arm.speedup
    doubt = f"95 % interval {wording.interval(speedup)}, {_of_linear(arm, first)}, {measurement.scaling} scaling"
    if measurement.scaling == "strong":
        times = f"{wording.span(arm.step_seconds.value)} against {wording.span(first.step_seconds.value)} per step"
    else:
        rates = [wording.three_digits(one.samples_per_second) for one in (arm, first)]
        times = f"{rates[0]} against {rates[1]} samples per second"
    if speedup.holds_one:
        answer = f"No measurable difference between {arm.cell} and {first.cell} ({wording.ratio(speedup.value)}, "
    elif speedup.value < 1:
        answer = f"{arm.cell} trains slower than {first.cell} ({wording.ratio(speedup.value)}, "
    else:
        answer = f"{arm.cell} trains {wording.ratio(speedup.value)} as fast as {first.cell} ("
    wrapped = arm.speedup_over_wrapped
    beside = f"; against the same process in a DDP wrapper {wording.ratio(wrapped.value)}" if wrapped else ""
    return f"{answer}{doubt}): {times}{beside}"


def _of_linear(arm: ArmSpeed, first: ArmSpeed) -> str:
    assert arm.speedup is not None
    share = parallel_efficiency(arm.speedup.value, arm.world_size, first.world_size)
    return f"{wording.percent(share)} of linear"


def _segments(cell: CellResults) -> str:
    """Return the spread over the segments, where the cell has some."""
    spread = cell.speedup_of_segments
    if spread is None:
        return ""
    return f" (single segments {wording.ratio(spread.lowest)} to {wording.ratio(spread.highest)})"


def _one_answer(results: Results, cell: CellResults) -> str:
    assert cell.whole.speedup is not None
    baseline = results.baseline
    times = f"{wording.seconds(cell.seconds_per_epoch)} against {wording.seconds(baseline.seconds_per_epoch)} per epoch"
    figure = f"{wording.ratio(cell.whole.speedup)}, {wording.percent(cell.whole.parallel_efficiency)} of linear"
    if abs(cell.whole.speedup - 1) <= NOISE_OF_ONE_RUN:
        return f"No clear difference between {cell.cell} and {baseline.cell} at equal work ({figure}): {times}"
    if cell.whole.speedup < 1:
        return f"{cell.cell} trains slower than {baseline.cell} at equal work ({figure}): {times}"
    return (
        f"{cell.cell} trains {wording.ratio(cell.whole.speedup)} as fast as {baseline.cell} "
        f"({wording.percent(cell.whole.parallel_efficiency)} of linear) at equal work: {times}"
    )


def _all_withheld(results: Results) -> str:
    failed = [gate for gate in results.gates if gate.verdict == "failed"]
    named = " and ".join(f"“{gate.name}”" for gate in failed)
    numbers = f": {failed[0].compared}" if len(failed) == 1 else ""
    true_figures = [one.true_figure for gate in failed for one in gate.findings if one.true_figure]
    remedy = f" ({'; '.join(dict.fromkeys(true_figures))})" if true_figures else ""
    return f"Speedup withheld: {_gate_or_gates(len(failed))} {named} failed{numbers}{remedy}."


def _gate_or_gates(number: int) -> str:
    return "the gate" if number == 1 else f"the {number} gates"


def _gates_passed(results: Results) -> str:
    verdicts = [gate.verdict for gate in results.gates]
    if verdicts.count("passed") == len(verdicts):
        return f"all {len(verdicts)} gates passed"
    others = [f"{number} {verdict}" for verdict in ("failed", "not checked") if (number := verdicts.count(verdict))]
    return f"{verdicts.count('passed')} of {len(verdicts)} gates passed, {', '.join(others)}"


def label_of(outputs: Outputs) -> str | None:
    """Return what kind of demonstration the comparison is and what its figures do not say; None if they say it all.

    Told by what the stages recorded (sources, weights, device), not by the comparison's name.
    """
    is_builtin = outputs.raw.kind == "builtin"
    has_random_weights = outputs.base_model.is_random_weights
    is_on_cpu = all(run.facts.device == "cpu" for run in outputs.runs.values())
    if not (is_builtin or has_random_weights or is_on_cpu):
        return None
    size = wording.parameters(outputs.base_model.num_parameters)
    model = f"a model of {size} that starts from random weights" if has_random_weights else f"a model of {size}"
    where = " on the CPU" if is_on_cpu else ""
    kind = "built-in demonstration" if is_builtin else "comparison"
    rows = "images" if unit_of(outputs.params.workload) == "image" else "texts"
    sentences = [f"This {kind} trains {model}{where}; its {rows} are {wording.readable(outputs.raw.label)}."]
    if is_on_cpu:
        sentences.append("Its speedup says something about the cores of this machine, and nothing about GPUs.")
    if has_random_weights:
        sentences.append("Its loss shows that training works, not what a useful model reaches.")
    return " ".join(sentences)
