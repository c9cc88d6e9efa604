"""reports/report.md: the same report for a terminal, a pull request or the Prefect UI."""

import re

from tasks.reporting import drawing, notes, tables
from tasks.reporting.glossary import GLOSSARY
from tasks.reporting.results import Results
from tasks.reporting.tables import Table

_SPECIAL = re.compile(r"([\\`*\[\]|])")


def render_markdown(results: Results) -> str:
    """Return the report as GitHub-flavoured markdown."""
    parts = tables.speed_of_ranges(results), tables.speed_of_epochs(results)
    withheld = notes.withheld(results)
    equivalence = tables.equivalence(results)
    blocks = [
        f"# {escaped(results.name)}",
        escaped(results.description),
        *([f"> {escaped(results.label)}"] if results.label else []),
        f"**{escaped(results.verdict)}**",
        "## What was compared",
        "\n".join(f"- {name}: {escaped(value)}" for name, value in tables.compared_facts(results)),
        _table(tables.spread_of_work(results)),
        "## Gates",
        _table(tables.gates(results)),
        *([_table(equivalence)] if equivalence else []),
        "## How much faster",
        *([withheld] if withheld else []),
        *[_table(table) for table in (tables.speed_of_cells(results), *parts) if table is not None],
        _charts(results),
        "## Is the model as good?",
        f"{results.quality.num_rows:,} rows ({results.quality.heldout}) that no range overlaps, cut to "
        f"{results.quality.seq_len} tokens.",
        _table(tables.quality_of_models(results)),
        *_samples(results),
        "## How it was measured",
        _list(notes.how_measured(results)),
        "## Glossary",
        "\n".join(f"- **{word}**: {escaped(meaning)}" for word, meaning in GLOSSARY.items()),
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
    head = f"| {' | '.join(table.headings)} |"
    names = table.num_row_headings
    # The verdicts of gates are words, figures of cells are numbers.
    align = "---" if table.title == "Gates" else "--:"
    rule = f"| {' | '.join(['---'] * names + [align] * (len(table.headings) - names))} |"
    rows = [f"| {' | '.join(escaped(value) for value in row)} |" for row in table.rows]
    return "\n".join([head, rule, *rows])


def _charts(results: Results) -> str:
    return "\n".join(
        f"- [{chart.TITLE}](charts/{name}.svg): {escaped(drawing.caption(chart, results))}"
        for name, chart in drawing.find_charts().items()
    )


def _samples(results: Results) -> list[str]:
    blocks = ["### Samples side by side"] if results.quality.samples else []
    for sample in results.quality.samples:
        texts = [("prompt", sample.prompt.strip()), *tables.sample_texts(sample)]
        body = "\n\n".join(f"[{who}]\n{text}" for who, text in texts)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
        blocks.append(f"Row {sample.row_id}:\n\n{fence}text\n{body}\n{fence}")
    return blocks


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)
