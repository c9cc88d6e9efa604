"""A report made of a few kinds of blocks, as one page that needs nothing else, and as Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_SPECIAL = re.compile(r"([\\`*\[\]|~#])")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}th,td{text-align:left;padding:.3rem .8rem;"
    "border-bottom:1px solid #8886;vertical-align:top}.lead{font-size:1.3rem}summary{cursor:pointer;font-weight:600}"
    "details{margin:.8rem 0;padding:.2rem .8rem;border-left:3px solid #8886}"
)


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table with a title."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Fold:
    """What is read by whoever opens it."""

    title: str
    blocks: "Sequence[Block]"
    is_open: bool = False


@dataclass(frozen=True)
class Section:
    """A part with a heading."""

    title: str
    blocks: "Sequence[Block]"


Block = str | Items | Table | Fold | Section
"""A text is a paragraph."""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    """Its first sentences, which stand alone."""
    blocks: Sequence[Block] = field(default_factory=list)


def render_html(document: Document) -> str:
    """Return the page; nothing in its texts becomes markup."""
    title = escape(document.title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><main><h1>{title}</h1>"
        f'<p class="lead">{escape(document.lead)}</p>{_join_html(document.blocks)}</main></html>\n'
    )


def render_markdown(document: Document) -> str:
    """Return the same for a terminal."""
    return (
        "\n\n".join([f"# {_escape(document.title)}", _escape(document.lead), *map(_to_markdown, document.blocks)])
        + "\n"
    )


def _join_html(blocks: Sequence[Block]) -> str:
    return "\n".join(map(_to_html, blocks))


def _to_html(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, Items):
        return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in block.items) + "</ul>"
    if isinstance(block, Table):
        head = "".join(f'<th scope="col">{escape(one)}</th>' for one in block.head)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
        return f"<table><caption>{escape(block.title)}</caption><tr>{head}</tr>{rows}</table>"
    if isinstance(block, Fold):
        is_open = " open" if block.is_open else ""
        return f"<details{is_open}><summary>{escape(block.title)}</summary>{_join_html(block.blocks)}</details>"
    return f"<section><h2>{escape(block.title)}</h2>{_join_html(block.blocks)}</section>"


def _to_markdown(block: Block) -> str:
    if isinstance(block, str):
        return _escape(block)
    if isinstance(block, Items):
        return "\n".join(f"- {_escape(one)}" for one in block.items)
    if isinstance(block, Table):
        rows = [block.head, ["---"] * len(block.head), *block.rows]
        lines = [
            "| " + " | ".join(one if at == 1 else _escape(one) for one in row) + " |" for at, row in enumerate(rows)
        ]
        return "\n".join([f"{_escape(block.title)}:", "", *lines])
    mark = "##" if isinstance(block, Section) else "###"
    return "\n\n".join([f"{mark} {_escape(block.title)}", *map(_to_markdown, block.blocks)])


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", escape(" ".join(text.split()), quote=False))
