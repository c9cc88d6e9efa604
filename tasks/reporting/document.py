"""The report: which sections it has, in the order in which it answers, and what stands around them."""

from collections.abc import Sequence
from dataclasses import replace

from tasks.reporting import drawing
from tasks.reporting.blocks import Block, Charts, Document, PageSection, ShownChart, Text
from tasks.reporting.results import Results
from tasks.reporting.sections import (
    SectionFile,
    advice,
    compared,
    cost,
    gates,
    glossary,
    history,
    losses,
    make_section,
    measured,
    not_claimed,
    prediction,
    preflight,
    quality,
    speed,
    verdict,
)

SECTIONS: Sequence[SectionFile] = (
    verdict, compared, gates, speed, losses, advice, prediction, quality, cost, history, preflight, measured, glossary,
    not_claimed,
)  # fmt: skip
"""In the order of the report."""

_FILES = (
    "Machine-readable: results.json (everything), blocks.parquet, epochs.csv, losses.csv, metrics.json; the charts "
    "alone: charts/."
)


def make_document(results: Results) -> Document:
    """Return the report of these results, for every renderer."""
    charts = [
        (chart.SECTION, ShownChart(name, chart.TITLE, drawing.make_caption(chart, results)))
        for name, chart in drawing.select_charts(results).items()
    ]

    def fill(block: Block) -> Block:
        if not isinstance(block, Charts):
            return block
        return replace(block, charts=[chart for slot, chart in charts if slot == block.slot])

    def make(file: SectionFile) -> PageSection:
        section = make_section(file, results)
        return replace(section, blocks=[fill(block) for block in section.blocks])

    return Document(
        title=results.name,
        tab="speedup withheld" if results.is_withheld else "is it faster, and is it the same training?",
        summary=results.verdict,
        lead=verdict.make_lead(results),
        sections=[make(file) for file in SECTIONS],
        end=[Text(_FILES)],
    )
