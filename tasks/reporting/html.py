"""reports/index.html: one file that needs nothing else, from results alone."""

from dataclasses import dataclass
from pathlib import Path

from tasks.reporting import (
    accuracy_tables,
    cost_tables,
    drawing,
    history_tables,
    measured_notes,
    measured_tables,
    notes,
    tables,
    wording,
)
from tasks.reporting.compared import compared_facts
from tasks.reporting.glossary import glossary_for, word_of
from tasks.reporting.measured import arm_of, cells_of
from tasks.reporting.measurement import Estimate, Measurement
from tasks.reporting.results import CellResults, Results
from tasks.reporting.verdict import by_merit

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """A chart as the page shows it."""

    name: str
    title: str
    caption: str
    svg: str


def render_html(results: Results, svgs: dict[str, str]) -> str:
    """Return the page; `svgs` holds every chart as drawn by drawing.draw_svg."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["anchor"] = _anchor
    environment.filters["texts"] = tables.sample_texts
    environment.filters["word"] = word_of
    return environment.get_template("template.html.j2").render(
        results=results,
        style=(_FOLDER / "style.css").read_text(encoding="utf-8"),
        light=_variables(0),
        dark=_variables(1),
        headline=_headline(results),
        facts=compared_facts(results),
        work=tables.spread_of_work(results),
        nodes=tables.nodes(results),
        standings=tables.standings(results),
        equivalence=tables.equivalence(results),
        arms=measured_tables.arms(results),
        noise=measured_notes.noise(results),
        speed=[table for table in (tables.speed_of_cells(results), *_parts(results)) if table is not None],
        nothing=measured_notes.nothing(results),
        losses=measured_notes.losses(results),
        waterfalls=measured_tables.waterfalls(results),
        advised=measured_notes.advised(results),
        advice=measured_tables.advice(results),
        patches=measured_tables.patches(results),
        predictions=measured_tables.predictions(results),
        fitness=measured_notes.fitness(results),
        preflight=measured_tables.preflight(results),
        history=history_tables.summary(results),
        changes=history_tables.changes(results),
        records=history_tables.records(results),
        charts=_figures(results, svgs),
        heldout_rows=notes.heldout_rows(results),
        quality=tables.quality_of_models(results),
        reached=cost_tables.reached(results),
        times_to_loss=cost_tables.times_to_loss(results),
        best_and_last=accuracy_tables.best_and_last(results),
        reached_accuracy=accuracy_tables.reached(results),
        times_to_accuracy=accuracy_tables.times(results),
        no_cost=cost_tables.missing(results),
        costs=cost_tables.tables(results),
        cost_notes=cost_tables.notes(results),
        withheld=notes.withheld(results),
        how_measured=notes.how_measured(results),
        not_claimed=notes.not_claimed(results),
        glossary=glossary_for(is_classified=results.quality.is_classified, unit=results.unit),
    )


def _figures(results: Results, svgs: dict[str, str]) -> dict[str, list[Figure]]:
    """Return section -> its charts, in the order of the report."""
    figures: dict[str, list[Figure]] = {}
    for name, chart in drawing.charts_of(results).items():
        if name in svgs:
            figure = Figure(name, chart.TITLE, drawing.caption(chart, results), drawing.inline(svgs[name]))
            figures.setdefault(chart.SECTION, []).append(figure)
    return figures


def _parts(results: Results) -> list[tables.Table | None]:
    return [tables.speed_of_ranges(results), tables.speed_of_epochs(results)]


def _headline(results: Results) -> list[tuple[str, str, str]]:
    """Return (value, what it is, remark) of the few figures that stand at the top."""
    passed = sum(gate.verdict == "passed" for gate in results.gates)
    gates = (f"{passed} of {len(results.gates)}", "gates passed", _gate_remark(results))
    if results.measurement is not None and results.is_speedup_measured:
        return [*_measured_headline(results, results.measurement), gates]
    shown_first = [*by_merit(results), *results.cells[1:], *results.cells]
    fastest, baseline = shown_first[0], results.baseline
    shown = [
        (wording.ratio(fastest.whole.speedup), _speedup_word(fastest), f"{fastest.cell} against {baseline.cell}"),
        (wording.percent(fastest.whole.parallel_efficiency), "parallel efficiency", "100 % is linear"),
    ]
    return [
        *(shown if len(results.cells) > 1 else []),
        (
            wording.seconds(fastest.seconds_per_epoch),
            "per epoch",
            f"{fastest.cell}; {baseline.cell} {wording.seconds(baseline.seconds_per_epoch)}"
            if fastest is not baseline
            else fastest.cell,
        ),
        (f"{wording.three_digits(fastest.whole.tokens_per_second)}", f"{results.unit}s per second", fastest.cell),
        gates,
    ]


def _measured_headline(results: Results, measurement: Measurement) -> list[tuple[str, str, str]]:
    first = cells_of(measurement)[0]
    cell = [*by_merit(results), *results.cells[1:]][0]
    fastest, efficiency = arm_of(measurement, cell.cell), cell.measured_efficiency
    doubt = f"{wording.interval(fastest.speedup)} (95 %); " if fastest.speedup else ""
    return [
        (_ratio(fastest.speedup), _speedup_word(cell), f"{doubt}{fastest.cell} against {first.cell}"),
        (
            wording.percent(None if efficiency is None else efficiency.value),
            "parallel efficiency",
            "100 % is linear",
        ),
        (
            wording.span(fastest.step_seconds.value),
            "per step",
            f"{fastest.cell}; {first.cell} {wording.span(first.step_seconds.value)}",
        ),
        (wording.three_digits(fastest.tokens_per_second), f"{results.unit}s per second", fastest.cell),
    ]


def _speedup_word(cell: CellResults) -> str:
    return "speedup, unproven" if cell.standing.state == "unproven" else "speedup"


def _ratio(estimate: Estimate | None) -> str:
    return wording.ratio(None if estimate is None else estimate.value)


def _gate_remark(results: Results) -> str:
    failed = len(results.failed_gates)
    unchecked = sum(gate.verdict == "not checked" for gate in results.gates)
    parts = [f"{failed} failed"] * bool(failed) + [f"{unchecked} not checked"] * bool(unchecked)
    return ", ".join(parts) or "none failed, none left out"


def _variables(ground: int) -> str:
    return " ".join(f"--{variable}: {color[ground]};" for variable, color in drawing.colors().items())


def _anchor(word: str) -> str:
    return "word-" + "".join(char if char.isalnum() else "-" for char in word.lower())
