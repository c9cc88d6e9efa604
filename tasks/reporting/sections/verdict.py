"""The answer, and the few figures that it rests on."""

from tasks.gates.measured import select_arm, select_cell_arms
from tasks.process import wording
from tasks.records.measurement import Measurement
from tasks.reporting.blocks import Block, KeyFigures, Text
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results
from tasks.reporting.verdict import sort_by_merit

TITLE = "Verdict"

_Figures = list[tuple[str, str, str]]


def make_lead(results: Results) -> list[Block]:
    """Return what the comparison is, and what kind of demonstration if it is one."""
    description, label = Text(results.description, "lead"), Text(results.label or "", "label")
    return [text for text in (description, label) if text.text]


def make_answer(results: Results) -> Text:
    """Return the verdict."""
    return Text(results.verdict, "refusal" if results.is_withheld else "answer")


def make_blocks(results: Results) -> list[Block]:
    """Return the verdict, and below it speedup, efficiency, speed and gates of the cell that it is about."""
    measurement = results.measurement if results.is_speedup_measured else None
    figures = _tell_trained(results) if measurement is None else _tell_measured(results, measurement)
    passed = sum(gate.verdict == "passed" for gate in results.gates)
    gates = (f"{passed} of {len(results.gates)}", "gates passed", _tell_gates(results))
    return [make_answer(results), KeyFigures([*figures, gates])]


def _tell_trained(results: Results) -> _Figures:
    """Return the figures of the whole training of the fastest cell."""
    fastest, baseline = [*sort_by_merit(results), *results.cells[1:], *results.cells][0], results.baseline
    speedup = [
        (
            wording.format_ratio(fastest.whole.speedup),
            _name_speedup(fastest),
            f"{fastest.cell} against {baseline.cell}",
        ),
        (wording.format_percent(fastest.whole.parallel_efficiency), "parallel efficiency", "100 % is linear"),
    ]
    beside = "" if fastest is baseline else f"; {baseline.cell} {wording.format_seconds(baseline.seconds_per_epoch)}"
    return [
        *(speedup if len(results.cells) > 1 else []),
        (wording.format_seconds(fastest.seconds_per_epoch), "per epoch", f"{fastest.cell}{beside}"),
        (wording.format_three_digits(fastest.whole.tokens_per_second), f"{results.unit}s per second", fastest.cell),
    ]


def _tell_measured(results: Results, measurement: Measurement) -> _Figures:
    """Return the figures of the fastest cell while arms took turns."""
    first = select_cell_arms(measurement)[0]
    cell = [*sort_by_merit(results), *results.cells[1:]][0]
    fastest, efficiency = select_arm(measurement, cell.cell), cell.measured_efficiency
    doubt = f"{wording.format_interval(fastest.speedup)} (95 %); " if fastest.speedup else ""
    steps = f"{fastest.cell}; {first.cell} {wording.format_duration(first.step_seconds.value)}"
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
