"""Prose out of docstrings: paragraphs of English sentences, without code, tables, parameter lists or markup."""

import inspect
import re

_FENCE = re.compile(r"^\s*(```|~~~)")
_UNDERLINE = re.compile(r"^\s*([=\-~^\"'`#*+])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"^\.\. ")
_INDENT = re.compile(r"^\s+")
# A heading of the Google style ends in a colon; one of numpydoc is underlined.
_SECTION = re.compile(r"^[A-Z][A-Za-z]*(?: [A-Za-z]+){0,3}:\s*$")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+•]|\(?[0-9a-zA-Z][.)]|\[[0-9]+\]|@[a-z]+|:[a-z]+)(?:\s|$)")

_MARKUP = (
    # Roles such as :class:`~torch.nn.Module` and :ref:`text <target>`; the name's last part is what one would say.
    (r":[a-zA-Z:+_-]+:`+!?~(?:[\w.]*\.)?(\w+)(?:\(\))?`+", r"\1"),
    (r":[a-zA-Z:+_-]+:`+!?(?:_\w+)?\.([\w.]+(?:\(\))?)`+", r"\1"),
    (r":[a-zA-Z:+_-]+:`+([^`<]+?)\s*<[^`>]*>`+", r"\1"),
    (r":[a-zA-Z:+_-]+:`+!?([^`]+)`+", r"\1"),
    (r"!?\[`?~?([^\]`]*)`?\]\([^)]*\)", r"\1"),
    (r"\[`~?!?(?:[\w.]*\.)?([^\]`]*)`\]", r"\1"),
    (r"`([^`<]+?)\s*<[^`>]*>`_{0,2}", r"\1"),
    (r"`+([^`]+)`+_{0,2}", r"\1"),
    (r"\s?\[(?:#?\w{1,12})\]_", ""),
    (r"(\*\*?|__)(?=\w)([^*_\n]+?)(?<=[\w.,:!?])\1(?!\w)", r"\2"),
    (r"\|([A-Z]\w*)\|", r"\1"),
    (r"(?<=\w)_(?=[\s.,;:)]|$)", ""),
    (r"</?[a-zA-Z][^<>]{0,60}>", ""),
    (r"::(?=\s|$)", ":"),
    (r"(?<=\w) ?-- ?(?=\w)", " - "),
    (r"[\u2018\u2019]", "'"),
    (r"[\u201c\u201d]", '"'),
    (r"\s+", " "),
)
_ADMONITION = re.compile(r"^(?:NOTE|Note|Notes|Warning|WARNING|Important|Tip|Caution)\s*:\s+")
_NOISE = re.compile(
    r">>>|https?://|www\.|[\\$|{}\[\]=^~@#<>`]|:\w+:|\.\.\s|\w\(\w*\)\.\w|[\w/]+/\w+/\w|::|\bTODO\b|\bFIXME\b|Copyright"
    r"|[Ll]icensed? under|\bversionadded\b|\*\S|\S\*"
)
_IDENTIFIER = re.compile(r"\w_\w|\w\.\w+\.\w|[a-z][A-Z]|\w\(|^_|_$|\d[a-z]|\.\w+$")
_SENTENCE_END = re.compile(r"[.!?][\"')]?$")
_SENTENCE_BREAK = re.compile(r"(?<=[a-z)\"'][.!?])\s+(?=[A-Z\"'(])")
_COMMON_WORDS = """
    the a an of to in is are be and or for with that this it as by on if not from can at which when will was has have
    but may should than then each all only same one any more used into must also no its they their so does do you
    between while where such these those how there other before after use we both because without
"""
MIN_PARAGRAPH = 60
_MIN_COMMON_SHARE = 0.25
_MAX_IDENTIFIER_SHARE = 0.12
_MIN_LETTER_SHARE = 0.93
_COMMON = frozenset(_COMMON_WORDS.split())


def extract_paragraphs(docstring: str) -> list[str]:
    """Return the docstring's paragraphs of plain English, each on one line, in order.

    Only text at the left margin counts: what is indented is a parameter list, a code block or a table. A
    paragraph is kept whole or not at all.
    """
    results = []
    for block in _split_blocks(inspect.cleandoc(docstring)):
        text = _strip_markup(" ".join(block))
        if is_prose(text):
            results.append(text)
    return results


def is_prose(text: str) -> bool:
    """Return True if the text reads as English sentences, not as code, markup, a table or a list of names."""
    if len(text) < MIN_PARAGRAPH or not text.isascii() or _NOISE.search(text):
        return False
    if not (text[0].isupper() and _SENTENCE_END.search(text)) or text.count("(") != text.count(")"):
        return False
    words = text.split()
    stripped = [word.strip(".,;:!?\"'()") for word in words]
    common = sum(word.lower() in _COMMON for word in stripped)
    identifiers = sum(_IDENTIFIER.search(word) is not None for word in stripped)
    letters = sum(character.isalpha() or character == " " for character in text)
    return (
        common >= _MIN_COMMON_SHARE * len(words)
        and identifiers <= _MAX_IDENTIFIER_SHARE * len(words)
        and letters >= _MIN_LETTER_SHARE * len(text)
    )


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph, roughly: none is cut in two, some may stay joined."""
    return _SENTENCE_BREAK.split(text)


def _split_blocks(text: str) -> list[list[str]]:
    """Return the runs of lines at the left margin, without fenced code, headings, lists and directives."""
    lines = text.expandtabs().splitlines()
    blocks: list[list[str]] = [[]]
    is_fenced = is_skipped = False
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if _FENCE.match(line):
            is_fenced = not is_fenced
            blocks.append([])
        elif is_fenced:
            continue
        elif not line.strip() or _UNDERLINE.match(line):
            is_skipped = False
            blocks.append([])
        elif is_skipped or bool(
            _INDENT.match(line)
            or _UNDERLINE.match(following)
            or _DIRECTIVE.match(line)
            or _LIST_ITEM.match(line)
            or _SECTION.match(line)
            # A definition list: a term with its indented explanation.
            or (_INDENT.match(following) and following.strip())
        ):
            # The rest of a list item or of a directive belongs to it, up to the next empty line.
            is_skipped = True
            blocks[-1] = []
        else:
            blocks[-1].append(line)
    return [block for block in blocks if block]


def _strip_markup(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    text = _ADMONITION.sub("", text.strip())
    if text.endswith(":"):  # the sentence that led to the code or the list left out here goes with it
        text = " ".join(split_sentences(text)[:-1])
    return f"{text}." if text[-1:].isalpha() else text
