"""Templates as a page, as Markdown, or as plain text; templates/ holds every sentence, once for all of them.

A template says things through the macros of html.j2 or markdown.j2. Whatever it prints is escaped as the form asks, so
that a name out of the data never becomes markup, and without codes that a terminal obeys.
"""

import base64
import functools
import hashlib
import html
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.process import wording

Form = Literal["html", "markdown"]

TEMPLATES = Path(__file__).with_name("templates")
_SPECIAL = re.compile(r"([\\`*\[\]|~#])")
_LONG_NAME = 20
_TONES = {
    **dict.fromkeys((wording.WITHHELD, wording.NOT_AVAILABLE, wording.BASELINE, wording.NOTHING), "quiet"),
    **{mark: outcome.replace(" ", "-") for outcome, mark in wording.MARKS.items()},
}
"""A word that looks alike wherever it stands alone -> its class in style.css."""
_SHOW_NONE = ("ratio", "percent", "ratio_with_interval")
"""Formats that say themselves that a figure is withheld; None stays None in the others, which a table shows as n/a."""


@dataclass(frozen=True)
class ShownChart:
    """A drawing of charts/, how to read it, and in words the figures that it shows."""

    name: str
    title: str
    caption: str
    figures: str = ""

    @property
    def alternative(self) -> str:
        """All of it in words, for who does not see it."""
        return f"{self.caption} {self.figures}".strip()


def render(
    form: Form,
    template: str,
    *,
    unit: str = "token",
    meanings: Mapping[str, str] | None = None,
    charts: Mapping[str, Sequence[ShownChart]] | None = None,
    svgs: Mapping[str, str] | None = None,
    **given: Any,
) -> str:
    """Return the document of templates/TEMPLATE.j2, which sets `title`, `tab` and `summary`.

    `meanings` are the words that a table's heading links to, `charts` those that stand at each place of the document;
    on a page those without a drawing in `svgs` are left out. `given` is what the template speaks of.
    """
    environment, numbers = _make_environment(form), itertools.count(1)
    words: set[str] = set()
    shared = {
        "unit": unit, "meanings": meanings or {}, "charts_at": charts or {}, "svgs": svgs or {}, "words": words,
        "sections": [], "ends": [], "count": functools.partial(next, numbers),
        "lay_out": functools.partial(lay_out, unit=unit, words=words),
        "in_unit": functools.partial(wording.replace_unit, unit=unit),
    }  # fmt: skip
    macros = vars(environment.get_template(f"{form}.j2").make_module(shared))
    body: Any = environment.get_template(f"{template}.j2").make_module({**macros, **shared, **given})
    if form == "markdown":
        return _tidy(wording.replace_unprintable(f"# {escape(body.title)}\n\n{body}"))
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    page = environment.get_template("page.j2").render(
        **shared,
        document=body,
        style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
        script=script,
        # A browser runs this script and no other, whatever else found its way into the page.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return wording.replace_unprintable(page)


def render_lines(template: str, **given: Any) -> list[str]:
    """Return the lines of templates/TEMPLATE.j2 as plain text, without empty ones."""
    text = _make_environment("text").get_template(f"{template}.j2").render(**given)
    return [line for line in map(str.strip, wording.replace_unprintable(text).splitlines()) if line]


@functools.cache
def _make_environment(form: Form | Literal["text"]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=form != "text",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
        finalize=escape if form == "markdown" else None,
    )
    formats = {name.removeprefix("format_"): var for name, var in vars(wording).items() if name.startswith("format_")}
    environment.filters |= {
        name: item if name in _SHOW_NONE else functools.partial(_pass_none, item) for name, item in formats.items()
    } | {
        "join_names": lambda names: wording.join_names(list(names)),
        "find": lambda items, name, value: next((item for item in items if getattr(item, name) == value), None),
        "printable": wording.replace_unprintable,
        "sentence": lambda clause: f"{clause[:1].upper()}{clause[1:]}.",
        "joined": _join_lines,
        "line": _protect_line if form == "markdown" else _join_lines,
        "fence": _fence,
        "row": lambda values: Markup(f"| {' | '.join(map(escape, values))} |"),
        "slug": lambda word: "".join(char if char.isalnum() else "-" for char in word.lower()),
        "tone": lambda word: _TONES.get(word, ""),
    }  # fmt: skip
    constants = ("WITHHELD", "NOT_AVAILABLE", "BASELINE", "NOTHING", "MARKS", "FOLLOWS", "UNMEASURED")
    environment.globals |= {name: getattr(wording, name) for name in constants}
    return environment


def _pass_none(show: Any, value: Any, *more: Any) -> Any:
    return None if value is None else show(value, *more)


def lay_out(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    unit: str,
    words: set[str],
    names: int = 1,
    prose: int = 0,
    optional: Sequence[str] = (),
    as_word: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a table's columns and rows: None is n/a, and an `optional` column goes where it is None throughout.

    The first `names` columns name the row, the last `prose` are sentences, those between are figures. `as_word` is
    heading -> the word that explains it, where that is another; to `words` all of them are added.
    """
    kinds = ["name"] * names + ["figure"] * (len(headings) - names - prose) + ["prose"] * prose
    columns, known = list[dict[str, Any]](), as_word or {}
    for place, (heading, kind) in enumerate(zip(headings, kinds, strict=True)):
        if heading in optional and all(row[place] is None for row in rows):
            continue
        shown = heading if heading in known else wording.replace_unit(heading, unit)
        rule = "--:" if kind == "figure" else "---"
        columns.append(
            {"place": place, "heading": shown, "word": known.get(heading, shown), "kind": kind, "rule": rule}
        )
    if rows:
        words.update(column["word"] for column in columns)
    values = [[_show_value(row[column["place"]]) for column in columns] for row in rows]
    is_wordy = prose > 0 or any(len(name) > _LONG_NAME for row in values for name in row[:names])
    return {"columns": columns, "rows": values, "is_wordy": is_wordy}


def _show_value(value: Any) -> str:
    return wording.NOT_AVAILABLE if value is None else value if isinstance(value, str) else str(value)


def escape(text: Any) -> Markup:
    """Return a text as one line of Markdown in which nothing is markup, a table's border, HTML or a mention."""
    if isinstance(text, Markup):
        return text
    line = html.escape(_SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", str(text))), quote=False)
    # An underscore inside a word is no emphasis, and names read better without the backslash.
    line = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
    return Markup(re.sub(r"(?<!\w)@(?=\w)", "@\N{WORD JOINER}", line))


def _join_lines(text: str) -> str:
    return type(text)(" ".join(text.split()))


def _protect_line(text: str) -> Markup:
    """Return the text escaped as one line, and so that no list or rule begins with it."""
    return Markup(re.sub(r"^(\d*)([+.)-])", r"\1\\\2", escape(_join_lines(text))))


def _fence(text: str, language: str) -> Markup:
    """Return the text as a code block that nothing inside it can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Markup(f"{fence}{language}\n{text}\n{fence}")


def _tidy(markdown: str) -> str:
    """Return the lines without white space around them and without double blank ones, but for blocks of code."""
    lines: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        shown = line if fence else line.strip()
        if fence:
            fence = "" if shown == fence else fence
        elif opened := re.match("```+", shown):
            fence = opened[0]
        elif not shown and not (lines and lines[-1]):
            continue
        lines.append(shown)
    return "\n".join(lines).rstrip("\n") + "\n"
