"""The answer in one sentence, and the label that says what kind of comparison gave it."""

from tasks.reporting import wording
from tasks.reporting.measured import DATA_BOUND_SHARE, cells_of, data_wait_share, too_wide
from tasks.reporting.measurement import ArmSpeed, Measurement, Waterfall
from tasks.reporting.outputs import Outputs
from tasks.reporting.results import CellResults, Results
from tasks.reporting.statistics import NOISE_OF_ONE_RUN, parallel_efficiency
from tasks.stage.choices import unit_of


def verdict_of(results: Results) -> str:
    """Return the answer in one sentence: how much faster, or which gate withholds it."""
    if results.is_speedup_withheld:
        return _withheld(results)
    others = results.cells[1:]
    if not others:
        only = results.baseline
        return (
            f"{only.cell} needs {wording.seconds(only.seconds_per_epoch)} per epoch; a speedup needs a second cell to "
            f"compare with; {_gates_passed(results)}."
        )
    if results.measurement is not None and results.is_speedup_measured:
        said = [*_measured(results.measurement), *_not_clean(results), _gates_passed(results)]
        return f"{'; '.join(said)}."
    answers = _one_answer(results, others[0]) if len(others) == 1 else _many_answers(results, others)
    answer = "; ".join([answers, *_not_clean(results), _gates_passed(results)])
    return f"{answer}; one run of each cell{_segments(others)}, so no interval yet."


def _measured(measurement: Measurement) -> list[str]:
    """Return how much faster by measurement, and then whatever has to be known of it."""
    first, *others = cells_of(measurement)
    said = [_one_measured(measurement, first, others[0])] if len(others) == 1 else [_all_measured(measurement)]
    said += [f"data-bound: {_waiting(one, first)}" for one in measurement.waterfalls if one.is_data_bound]
    if too_wide(measurement):
        asked = wording.small_percent(measurement.half_width_asked)
        said.append(f"the interval is wider than the +- {asked} asked for: see How far to trust it")
    if measurement.preflight.verdict != "fit to measure":
        said.append("the machine was not fit to measure on: see Preflight")
    return said


def _not_clean(results: Results) -> list[str]:
    """Return what a slow rank does to each cell that has one: its speedup says something about that rank."""
    said = []
    for cell in results.cells:
        slowest = cell.slowest_rank
        if slowest is not None and slowest.is_straggler:
            said.append(
                f"{cell.cell} is not clean: rank {slowest.rank} took {wording.ratio(slowest.times_as_long)} as long as "
                f"the others for the same work, and they waited for it {wording.percent(slowest.waiting_share)} of "
                "the time"
            )
    return said


def _waiting(waterfall: Waterfall, first: ArmSpeed) -> str:
    """Return who waits for data; the baseline's own waiting, too, is no part of a cell's loss but spoils the ratio."""
    share = data_wait_share(waterfall)
    if share is None or share <= DATA_BOUND_SHARE:
        least = wording.percent(DATA_BOUND_SHARE)
        return f"{waterfall.cell} or {first.cell} waits for data in more than {least} of its step"
    return f"{waterfall.cell} waits for data in {wording.small_percent(share)} of its step"


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


def _all_measured(measurement: Measurement) -> str:
    first, *others = cells_of(measurement)
    figures = []
    for arm in others:
        assert arm.speedup is not None
        same = ", no measurable difference" if arm.speedup.holds_one else ""
        figures.append(
            f"{arm.cell} {wording.ratio(arm.speedup.value)} ({wording.interval(arm.speedup)}, {_of_linear(arm, first)}"
            f"{same})"
        )
    return (
        f"Speed per unit of work, as a multiple of {first.cell} ({wording.span(first.step_seconds.value)} per step), "
        f"with 95 % intervals, {measurement.scaling} scaling: {', '.join(figures)}"
    )


def _of_linear(arm: ArmSpeed, first: ArmSpeed) -> str:
    assert arm.speedup is not None
    share = parallel_efficiency(arm.speedup.value, arm.world_size, first.world_size)
    return f"{wording.percent(share)} of linear"


def _segments(cells: list[CellResults]) -> str:
    """Return the spread over the segments of the only other cell, where it has some."""
    spread = cells[0].speedup_of_segments
    if len(cells) > 1 or spread is None:
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


def _many_answers(results: Results, cells: list[CellResults]) -> str:
    figures = [
        f"{cell.cell} {wording.ratio(cell.whole.speedup)} ({wording.percent(cell.whole.parallel_efficiency)} of linear)"
        for cell in cells
    ]
    seconds = wording.seconds(results.baseline.seconds_per_epoch)
    return f"Speed at equal work, as a multiple of {results.baseline.cell} ({seconds} per epoch): {', '.join(figures)}"


def _withheld(results: Results) -> str:
    failed = results.failed_gates
    named = " and ".join(f"“{gate.name}”" for gate in failed)
    numbers = f": {failed[0].compared}" if len(failed) == 1 else ""
    true_figures = [gate.true_figure for gate in failed if gate.true_figure]
    remedy = f" ({true_figures[0]})" if true_figures else ""
    return f"Speedup withheld: {_gate_or_gates(len(failed))} {named} failed{numbers}{remedy}."


def _gate_or_gates(number: int) -> str:
    return "the gate" if number == 1 else f"the {number} gates"


def _gates_passed(results: Results) -> str:
    verdicts = [gate.verdict for gate in results.gates]
    num_passed, num_unchecked = verdicts.count("passed"), verdicts.count("not checked")
    if not num_unchecked:
        return f"all {len(verdicts)} gates passed"
    return f"{num_passed} of {len(verdicts)} gates passed, {num_unchecked} not checked"


def label_of(outputs: Outputs) -> str | None:
    """Return what kind of demonstration the comparison is and what its figures do not say; None if they say it all.

    Told by the workload and what the stages recorded (sources, weights, device), not by the comparison's name.
    """
    if outputs.params.workload == "emulated":
        return (
            "Emulated devices: layers that sleep and a link that waits stand in for devices that are not there. The "
            "speedup is that of the devices described, with real ranks and real DDP; it says nothing about this "
            "machine or any real one, and the loss says nothing about a model."
        )
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
