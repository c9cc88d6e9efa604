"""The report: which sections it has, in the order in which it answers, and what stands around them."""

from collections.abc import Sequence
from dataclasses import replace

from tasks.reporting import drawing
from tasks.reporting.blocks import (
    Block,
    Charts,
    Document,
    Fold,
    Links,
    PageSection,
    Table,
    Terms,
    list_blocks,
)
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
    memory,
    provenance,
    quality,
    speed,
    trust,
    verdict,
)

SECTIONS: Sequence[SectionFile] = (
    verdict, losses, advice, memory, gates, trust, quality, cost, history, speed, compared,
    measured, provenance, glossary,
)  # fmt: skip
"""In the order of the report: what was asked first, then what stands behind it."""
_FOLDED = (speed, compared, measured, provenance, glossary)
"""What stands behind the answers, for who wants to know."""

_FILES = Links(
    [
        ("results.json", "results.json", "everything that stands here, for machines"),
        ("blocks.parquet", "blocks.parquet", "every timed block as it ran"),
        ("epochs.csv", "epochs.csv", "seconds, tokens and loss of every epoch"),
        ("losses.csv", "losses.csv", "the loss of every optimizer step"),
        ("report.md", "report.md", "the same report for a terminal"),
        ("charts/", "charts/", "the charts as SVG files"),
    ]
)


def make_document(results: Results) -> Document:
    """Return the report of these results, for every renderer."""
    charts = [
        (chart.SECTION, drawing.show_chart(name, chart, results))
        for name, chart in drawing.select_charts(results).items()
    ]

    def fill(block: Block) -> Block:
        if isinstance(block, Fold):
            return replace(block, blocks=[fill(one) for one in block.blocks])
        if not isinstance(block, Charts):
            return block
        return replace(block, charts=[chart for slot, chart in charts if slot == block.slot])

    def make(file: SectionFile) -> PageSection:
        section = make_section(file, results)
        return replace(section, blocks=[fill(block) for block in section.blocks], is_folded=file in _FOLDED)

    sections = [make(file) for file in SECTIONS]
    blocks = [block for section in sections for block in list_blocks(section.blocks)]
    words = {block.words.get(name, name) for block in blocks if isinstance(block, Table) for name in block.headings}
    return Document(
        title=results.name,
        tab="speedup withheld" if results.is_withheld else "is it faster, and is it the same training?",
        summary=results.verdict,
        lead=verdict.make_lead(results),
        sections=[replace(one, blocks=[_keep_words(block, words) for block in one.blocks]) for one in sections],
        end=[Fold("Files beside this page", [_list_files(results)])],
    )


def _list_files(results: Results) -> Links:
    """Return the files beside the page, with a trace of one step of each cell where one was recorded."""
    what = "one step of {}, rank by rank: open it in ui.perfetto.dev or chrome://tracing"
    traces = [(one.file, one.file, what.format(one.cell)) for one in results.timelines]
    return Links([*_FILES.links, *traces])


def _keep_words(block: Block, words: set[str]) -> Block:
    """Return a glossary with the words that stand over a table of this report alone; any other block as it is."""
    if not isinstance(block, Terms):
        return block
    return Terms({word: meaning for word, meaning in block.meanings.items() if word in words})
