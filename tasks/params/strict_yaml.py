"""YAML without its traps: no duplicate keys, no aliases, no octal, `5e-5` a number and `on` a word."""

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    NodeEvent,
    ScalarEvent,
)

from ddp_audit.process.redaction import TOKEN

_MAX_BYTES = 32_000
"""Room for a thousand ranges and all cells; the readers take a second for as much of the worst."""
_MAX_DEPTH = 10
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")


def read_strict_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that the YAML 1.2 file holds.

    Raises ValueError in one line for anything that another reader might read otherwise: duplicate keys, anchors and
    aliases, merge keys, keys that are no words, tags, directives, integers with a leading zero, a byte order mark, a
    file that is not UTF-8, over 32 kB or nested deeper than 10 levels. Also for a token of the Hub.
    """
    text = _read_text(path)
    try:
        open_ones: list[bool] = []
        for event in YAML(typ="safe", pure=True).parse(text):
            _refuse_ambiguous(event, within_brackets=bool(open_ones) and open_ones[-1], is_json=is_json(text))
            if isinstance(event, CollectionStartEvent):
                open_ones.append(bool(event.flow_style))
            elif isinstance(event, CollectionEndEvent):
                open_ones.pop()
            if len(open_ones) > _MAX_DEPTH:
                raise ValueError(f"nested deeper than {_MAX_DEPTH} levels; allowed: sections of keys and values")
        value = YAML(typ="safe", pure=True).load(text)
        # DVC reads the file too, by libyaml where ruamel.yaml.clib is installed, and `dvc exp run -S` writes it anew.
        if any(YAML(typ="safe").load(written) != value for written in (text, _write_as_dvc(text))):
            raise ValueError(
                "YAML that DVC would read or write otherwise; allowed: numbers of 15 digits, and lines of 80 letters "
                "without tabs and runs of blanks"
            )
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = " ".join(str(error.problem).split())
        raise ValueError(f"{line}not valid YAML: {problem}; allowed: YAML 1.2, each key once") from None
    except (YAMLError, RecursionError) as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())[:200]}; allowed: YAML 1.2") from None
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__} at the top level; allowed: a mapping of keys")
    _refuse_other_keys(value)
    return value


def _refuse_other_keys(value: Any) -> None:
    for part in value if isinstance(value, list) else []:
        _refuse_other_keys(part)
    for key, part in value.items() if isinstance(value, dict) else []:
        if not isinstance(key, str):
            raise ValueError(f"got the key {str(key)[:80]}, which is no word; allowed: words, or numbers in quotes")
        _refuse_other_keys(part)


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise ValueError("no such file; `make use PRESET=embedded` writes one")
    if (size := path.stat().st_size) > _MAX_BYTES:
        raise ValueError(f"got {size} bytes; allowed: at most {_MAX_BYTES}")
    raw = path.read_bytes()
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ValueError("starts with a byte order mark; allowed: plain UTF-8")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8; allowed: plain UTF-8") from None
    if (token := TOKEN.search(text)) is not None:
        line = text.count("\n", 0, token.start()) + 1
        raise ValueError(f"line {line}: holds a token of the Hub; allowed: tokens in the environment, as HF_TOKEN")
    return text


def is_json(text: str) -> bool:
    """Return whether it is JSON, as programs write params; `dvc exp run -S` spoils such a file."""
    return text.startswith("{")


def _write_as_dvc(text: str) -> str:
    round_trip, written = YAML(typ="rt"), io.StringIO()
    round_trip.dump(round_trip.load(text), written)
    return text if is_json(text) else written.getvalue()


def _refuse_ambiguous(event: Any, *, within_brackets: bool, is_json: bool) -> None:
    line = f"line {event.start_mark.line + 1}: "
    if isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor is not None):
        raise ValueError(f"{line}anchors and aliases are refused; allowed: the value itself")
    if isinstance(event, DocumentStartEvent) and (event.version or event.tags):
        raise ValueError(f"{line}got a directive such as %YAML; allowed: YAML 1.2 without directives")
    if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
        raise ValueError(f"{line}got the tag {str(event.tag)[:80]}; allowed: values without tags")
    if isinstance(event, ScalarEvent):
        # Quotes are no help: `dvc exp run -S` leaves them out.
        if within_brackets and any(sign in event.value for sign in ":?") and not (is_json and event.style):
            raise ValueError(
                f"{line}got {event.value[:80]} within brackets, where DVC cannot read it; allowed: on a line of its "
                "own, as `source: builtin:resnet50` below `model:`"
            )
        if event.style is None and event.value == "<<":
            raise ValueError(f"{line}got the merge key <<; allowed: the keys themselves")
        if event.style is None and _LEADING_ZERO.fullmatch(event.value):
            raise ValueError(f"{line}got {event.value}; allowed: a number without leading zeros")
