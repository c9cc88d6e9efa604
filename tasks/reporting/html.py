"""A document as one page that needs nothing else: reports/index.html."""

import base64
import hashlib
from pathlib import Path

from tasks.process import wording
from tasks.reporting import drawing
from tasks.reporting.blocks import Block, Document, Terms, list_blocks

_FOLDER = Path(__file__).parent
_TONES = {
    **dict.fromkeys((wording.WITHHELD, wording.NOT_AVAILABLE, wording.BASELINE, wording.NOTHING), "quiet"),
    **{mark: verdict.replace(" ", "-") for verdict, mark in wording.MARKS.items()},
}
"""A word that looks alike wherever it stands alone -> its class in style.css."""


def render_html(document: Document, svgs: dict[str, str]) -> str:
    """Return the page; `svgs` holds the charts as drawn by drawing.draw_svg, and one without drawing is left out."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "anchor": _make_anchor, "slug": _make_slug, "kind": _name_kind, "tone": lambda word: _TONES.get(word, "")
    }  # fmt: skip
    blocks = [block for section in document.sections for block in list_blocks(section.blocks)]
    script = (_FOLDER / "script.js").read_text(encoding="utf-8")
    terms = [block for block in blocks if isinstance(block, Terms)]
    return environment.get_template("template.html.j2").render(
        document=document,
        meanings={word: meaning for block in terms for word, meaning in block.meanings.items()},
        svgs={name: drawing.inline(svg) for name, svg in svgs.items()},
        style=(_FOLDER / "style.css").read_text(encoding="utf-8"),
        script=script,
        # A browser runs this script and no other, whatever else found its way into the page.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        light=_list_variables(0),
        dark=_list_variables(1),
    )


def _name_kind(block: Block) -> str:
    return type(block).__name__


def _list_variables(ground: int) -> str:
    return " ".join(f"--{variable}: {color[ground]};" for variable, color in drawing.list_colors().items())


def _make_anchor(word: str) -> str:
    return f"word-{_make_slug(word)}"


def _make_slug(word: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in word.lower())
