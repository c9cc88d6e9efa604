"""How an instruction becomes the prompt that a model reads, and in which columns its parts stand."""

import re
from pathlib import Path

from tasks.params.choices import suggest

TEMPLATES = {
    "dolly": (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Response:\n"
    ),
    "plain": "{instruction}\n\n",
}
"""Name -> the prompt; a context that has no place in it follows the instruction, on a line of its own."""
CHAT = "chat"
"""The tokenizer's own template for one turn of a conversation."""
FILE = "path:"
"""Before the name of a file with a template of one's own."""

CONTEXT = "context_column"
COLUMNS = {
    "instruction_column": ("instruction",), CONTEXT: ("context", "input"), "response_column": ("response", "output"),
}  # fmt: skip
"""Key of `dataset` -> where that part of a row is looked for unless it is named; a context need not be there."""

_PLACE = re.compile(r"\{([A-Za-z_]+)\}")
_MAX_CHARACTERS = 20_000


def require_template(key: str, name: str) -> None:
    """Raise ValueError unless it is a template's name, or `path:` and a file."""
    known = [*TEMPLATES, CHAT]
    if name in known or (name.startswith(FILE) and len(name) > len(FILE) and "\0" not in name):
        return
    raise ValueError(
        f"{key}: got {name[:80]!r}{suggest(name, known)}; allowed: {', '.join(known)}, or {FILE} and a text file"
    )


def read_template(name: str, *, base: Path = Path()) -> str | None:
    """Return the template's text, of a file below `base`; None for that of the tokenizer.

    Raises ValueError, in one line, for a file that is not there or no template.
    """
    if not name.startswith(FILE):
        return TEMPLATES.get(name)
    file = name.removeprefix(FILE)
    try:
        with (base / file).open(encoding="utf-8-sig") as opened:
            text = opened.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"dataset.template: {file} is no text file to read; allowed: one in UTF-8") from None
    if why := _explain_unfit(text):
        raise ValueError(f"dataset.template: {file} {why}")
    return text


def _explain_unfit(text: str) -> str | None:
    places = _PLACE.findall(text)
    if unknown := [place for place in places if place not in ("instruction", "context")]:
        return f"has {{{unknown[0]}}}; allowed: {{instruction}} and {{context}}, the response follows the prompt"
    if places.count("instruction") != 1 or places.count("context") > 1:
        return "needs {instruction} once, and {context} at most once"
    if len(text) > _MAX_CHARACTERS:
        return f"has over {_MAX_CHARACTERS:,} characters; allowed: that"
    if text.endswith((" ", "\t")):
        return "ends in a space, which would not be told from the response; end it with a new line, or a word"
    return None


def fill_template(template: str, *, instruction: str, context: str) -> str:
    """Return the prompt; what stands in braces in the two texts stays what it is."""
    if context and "{context}" not in template:
        instruction = f"{instruction}\n{context}"
    parts = {"instruction": instruction, "context": context}
    return _PLACE.sub(lambda place: parts[place[1]], template)
