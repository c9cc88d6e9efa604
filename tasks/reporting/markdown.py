"""reports/report.md: the same report for a terminal, a pull request or the Prefect UI."""

import re

from tasks.reporting import (
    accuracy_tables,
    cost_tables,
    drawing,
    history_tables,
    measured_notes,
    measured_tables,
    notes,
    tables,
)
from tasks.reporting.compared import compared_facts
from tasks.reporting.glossary import glossary_for
from tasks.reporting.results import Results
from tasks.reporting.tables import Table

_SPECIAL = re.compile(r"([\\`*\[\]|])")


def render_markdown(results: Results) -> str:
    """Return the report as GitHub-flavoured markdown."""
    withheld = notes.withheld(results)
    equivalence = tables.equivalence(results)
    nothing = measured_notes.nothing(results)
    blocks = [
        f"# {escaped(results.name)}",
        *([escaped(results.description)] if results.description else []),
        *([f"> {escaped(results.label)}"] if results.label else []),
        f"**{escaped(results.verdict)}**",
        "## What was compared",
        "\n".join(f"- {name}: {escaped(value)}" for name, value in compared_facts(results)),
        _table(tables.spread_of_work(results)),
        *([_table(nodes)] if (nodes := tables.nodes(results)) else []),
        "## Gates",
        _table(tables.gates(results)),
        *([_table(equivalence)] if equivalence else []),
        "## How much faster",
        *([withheld] if withheld else []),
        *_speed(results),
        "## Why not more?",
        *([escaped(nothing["losses"])] if "losses" in nothing else [_list(measured_notes.losses(results))]),
        *[_titled(table) for table in measured_tables.waterfalls(results)],
        *_charts(results, "losses"),
        "## What to change",
        *([escaped(nothing["advice"])] if "advice" in nothing else _advice(results)),
        "## What at 4, 8, 64?",
        *([escaped(nothing["prediction"])] if "prediction" in nothing else []),
        *_prediction(results),
        "## Is the model as good?",
        notes.heldout_rows(results),
        _table(tables.quality_of_models(results)),
        *_charts(results, "quality"),
        *_time_to_quality(results),
        *_samples(results),
        "## What it costs",
        *_cost(results),
        "## History",
        *_history(results),
        "## Preflight",
        *_preflight(results, nothing),
        "## How it was measured",
        _list(notes.how_measured(results)),
        "## Glossary",
        _glossary(results),
        "## What is not claimed",
        _list(notes.not_claimed(results)),
    ]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Return the text as one line in which nothing is markup, a table's border, HTML or a mention."""
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore inside a word is no emphasis, and names read better without the backslash.
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    return re.sub(r"(?<!\w)@(?=\w)", "@\N{WORD JOINER}", line)


def _table(table: Table) -> str:
    head = f"| {' | '.join(escaped(heading) for heading in table.headings)} |"
    names, prose = table.num_row_headings, table.num_prose
    figures = len(table.headings) - names - prose
    rule = f"| {' | '.join(['---'] * names + ['--:'] * figures + ['---'] * prose)} |"
    rows = [f"| {' | '.join(escaped(value) for value in row)} |" for row in table.rows]
    return "\n".join([head, rule, *rows])


def _titled(table: Table) -> str:
    return f"**{escaped(table.title)}**\n\n{_table(table)}"


def _speed(results: Results) -> list[str]:
    arms = measured_tables.arms(results)
    trained = [tables.speed_of_cells(results), tables.speed_of_ranges(results), tables.speed_of_epochs(results)]
    blocks = [_table(table) for table in trained if table is not None]
    if arms:
        noise = _list(measured_notes.noise(results))
        return [
            *(*[_titled(table) for table in arms], *_charts(results, "speed"), noise),
            *("### Of the whole training, one run", *blocks, *_charts(results, "training")),
        ]
    return [*blocks, *_charts(results, "training", "speed")]


def _advice(results: Results) -> list[str]:
    blocks = [escaped(measured_notes.advised(results) or "")]
    if (table := measured_tables.advice(results)) is not None:
        blocks.append(_table(table))
    for title, patch in measured_tables.patches(results):
        blocks += [f"### {escaped(title)}", _fenced("yaml", patch)]
    return blocks


def _prediction(results: Results) -> list[str]:
    found = measured_tables.predictions(results)
    measurement = results.measurement
    assumptions = measurement.prediction.assumptions if measurement is not None and measurement.prediction else []
    return [
        *_charts(results, "prediction"),
        *[_titled(table) for table in found],
        *(["What the prediction takes for granted:", _list(assumptions)] if assumptions else []),
    ]


def _time_to_quality(results: Results) -> list[str]:
    reached, table = cost_tables.reached(results), cost_tables.times_to_loss(results)
    blocks = [] if reached is None or table is None else [escaped(reached), _table(table)]
    found = accuracy_tables.reached(results)
    for about, one in ((None, accuracy_tables.best_and_last(results)), (found, accuracy_tables.times(results))):
        blocks += [*([] if about is None else [escaped(about)]), *([] if one is None else [_table(one)])]
    return blocks


def _cost(results: Results) -> list[str]:
    if (missing := cost_tables.missing(results)) is not None:
        return [missing]
    return [*[_titled(table) for table in cost_tables.tables(results)], _list(cost_tables.notes(results))]


def _preflight(results: Results, nothing: dict[str, str]) -> list[str]:
    table, fitness = measured_tables.preflight(results), measured_notes.fitness(results)
    if table is None or fitness is None:
        return [escaped(nothing["preflight"])]
    return [escaped(fitness), _table(table)]


def _history(results: Results) -> list[str]:
    found = [history_tables.changes(results), history_tables.records(results)]
    return [
        escaped(history_tables.summary(results)),
        *[_titled(table) for table in found if table is not None],
        *_charts(results, "history"),
    ]


def _charts(results: Results, *sections: str) -> list[str]:
    lines = [
        f"- [{chart.TITLE}](charts/{name}.svg): {escaped(drawing.caption(chart, results))}"
        for name, chart in drawing.charts_of(results).items()
        if chart.SECTION in sections
    ]
    return ["\n".join(lines)] if lines else []


def _glossary(results: Results) -> str:
    words = glossary_for(is_classified=results.quality.is_classified, unit=results.unit)
    return "\n".join(f"- **{word}**: {escaped(meaning)}" for word, meaning in words.items())


def _samples(results: Results) -> list[str]:
    blocks = ["### Samples side by side"] if results.quality.samples else []
    for sample in results.quality.samples:
        texts = [("prompt", sample.prompt.strip()), *tables.sample_texts(sample)]
        body = "\n\n".join(f"[{who}]\n{text}" for who, text in texts)
        blocks.append(f"Row {sample.row_id}:\n\n{_fenced('text', body)}")
    return blocks


def _fenced(kind: str, body: str) -> str:
    """Return the text as a code block that nothing inside it can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    return f"{fence}{kind}\n{body}\n{fence}"


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)
