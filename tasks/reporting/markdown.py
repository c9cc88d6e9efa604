"""A document as GitHub-flavoured Markdown: reports/report.md, and the model card on the Hub."""

import re
from collections.abc import Sequence
from typing import assert_never

from tasks.reporting.blocks import (
    Answers,
    Block,
    Charts,
    Code,
    Document,
    Facts,
    Fold,
    Heading,
    Items,
    KeyFigures,
    Links,
    Quotes,
    Table,
    Terms,
    Text,
)

_SPECIAL = re.compile(r"([\\`*\[\]|~#])")


def render_markdown(document: Document) -> str:
    """Return the document; nothing in its texts becomes markup."""
    parts = [f"# {escape(document.title)}", *_render_blocks(document.lead)]
    for section in document.sections:
        parts += [f"## {escape(section.title)}", *_render_blocks(section.blocks)]
    return "\n\n".join([*parts, *_render_blocks(document.end)]) + "\n"


def _render_blocks(blocks: Sequence[Block]) -> list[str]:
    return [text for text in map(_render, blocks) if text]


def _render(block: Block) -> str:
    match block:
        case Text():
            return _render_text(block)
        case Fold(title, blocks):
            return "\n\n".join([f"### {escape(title)}", *_render_blocks(blocks)])
        case Heading(text):
            return f"### {escape(text)}"
        case Items() | KeyFigures() | Answers() | Facts() | Links() | Terms():
            return _render_list(_list_items(block))
        case Table():
            names, prose = block.num_row_headings, block.num_prose
            rule = ["---"] * names + ["--:"] * (len(block.headings) - names - prose) + ["---"] * prose
            rows = [[escape(value) for value in row] for row in block.rows]
            lines = [[escape(heading) for heading in block.headings], rule, *rows]
            return f"**{escape(block.title)}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case Charts(_, charts):
            return _render_list([f"[{one.title}](charts/{one.name}.svg): {escape(one.told)}" for one in charts])
        case Code(text, language):
            return _fence(language, text)
        case Quotes(title, quotes):
            body = "\n\n".join(f"[{who}]\n{text}" for who, text in quotes)
            return f"{_escape_line(title)}:\n\n{_fence('text', body)}"
        case _:
            assert_never(block)


def escape(text: str) -> str:
    """Return the text as one line in which nothing is markup, a table's border, HTML or a mention."""
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore inside a word is no emphasis, and names read better without the backslash.
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    return re.sub(r"(?<!\w)@(?=\w)", "@\N{WORD JOINER}", line)


def _escape_line(text: str) -> str:
    """Return the text escaped, and so that no list or rule begins with it."""
    return re.sub(r"^(\d*)([+.)-])", r"\1\\\2", escape(text))


def _render_text(block: Text) -> str:
    match block.role:
        case "answer" | "unresolved" | "refusal":
            return f"**{escape(block.text)}**"
        case "label" | "notice":
            return f"> {_escape_line(block.text)}"
        case _:
            return _escape_line(block.text)


def _list_items(block: Items | KeyFigures | Answers | Facts | Links | Terms) -> list[str]:
    match block:
        case Items(texts):
            return [_escape_line(text) for text in texts]
        case KeyFigures(found):
            return [f"**{escape(value)}** {escape(what)} ({escape(remark)})" for value, what, remark in found]
        case Answers(answers):
            return [f"**{escape(question)}** {escape(answer)}" for question, answer, _ in answers]
        case Facts(pairs):
            return [f"**{escape(name)}**: {escape(value)}" for name, value in pairs]
        case Links(links):
            return [f"[{escape(name)}]({href}): {escape(what)}" for name, href, what in links]
        case Terms(meanings):
            return [f"**{escape(word)}**: {escape(meaning)}" for word, meaning in meanings.items()]


def _render_list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _fence(language: str, text: str) -> str:
    """Return the text as a code block that nothing inside it can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
