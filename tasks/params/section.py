"""What every section of params.yaml is: a frozen model that refuses unknown keys and takes no value for another."""

import datetime
import typing
from types import NoneType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, FiniteFloat, ValidationError

from ddp_audit.process.redaction import shorten
from tasks.params.choices import suggest


class Section(BaseModel):
    """A mapping of params.yaml; the docstring under each field says what it means, with its unit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _require_day(value: Any) -> Any:
    try:
        # Without quotes YAML makes a date of it, and DVC refuses a params.yaml that holds one.
        is_day = isinstance(value, str) and datetime.date.fromisoformat(value).isoformat() == value
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError('must be a day as YYYY-MM-DD in quotes, such as "2026-11-21"')
    return value


Finite = FiniteFloat
"""A finite number."""
Day = Annotated[str, BeforeValidator(_require_day)]
"""A day as YYYY-MM-DD."""


_MAX_MESSAGE = 400
"""Characters of a check's own words, which may repeat the value; what is allowed stands last."""


def describe_first_complaint(error: ValidationError, schema: type[BaseModel]) -> str:
    """Return the first complaint as `key: got VALUE; allowed: WHAT`, unknown keys before all others.

    An unknown key comes first because it is often the cause of a missing one.
    """
    complaints = error.errors(include_url=False)
    first = min(complaints, key=lambda complaint: complaint["type"] != "extra_forbidden")
    path = list(map(str, first["loc"]))
    key = ".".join(part if part.isprintable() else repr(part) for part in path) or "params.yaml"
    if first["type"] == "extra_forbidden":
        allowed = _list_allowed_keys(schema, path[:-1])
        return f"{key[:120]}: unknown key{suggest(path[-1], allowed)}; allowed: {', '.join(allowed)}"
    if first["type"] == "missing":
        return f"{key}: missing; this key is required"
    if first["type"] == "value_error":
        message = shorten(str(first["ctx"]["error"]), limit=_MAX_MESSAGE)
        # The check of a whole section names the key itself.
        if isinstance(first["input"], dict | BaseModel):
            return f"{key}.{message}" if path else message
        return f"{key}: got {_shorten_value(first['input'])}; {message}"
    if first["type"] == "model_type":
        keys = ", ".join(_list_allowed_keys(schema, path))
        return f"{key}: got {_shorten_value(first['input'])}; allowed: a mapping with the keys {keys}"
    message = first["msg"].removeprefix("Input should be ").replace("a valid integer", "an integer")
    said = message.replace("a valid boolean", "true or false").replace("valid ", "")
    return f"{key}: got {_shorten_value(first['input'])}; allowed: {said[:1].lower()}{said[1:]}"


def _list_allowed_keys(schema: type[BaseModel], path: list[str]) -> list[str]:
    """Return the keys of the section at `path`; a mapping of sections has the keys of one of them."""
    section: Any = schema
    for part in path:
        if isinstance(section, type) and issubclass(section, BaseModel):
            kind = section.model_fields[part].annotation
            others = [arg for arg in typing.get_args(kind) if arg is not NoneType]
            section = others[0] if len(others) == 1 and NoneType in typing.get_args(kind) else kind
        else:
            section = typing.get_args(section)[-1]
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []


def _shorten_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
