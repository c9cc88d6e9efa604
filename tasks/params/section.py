"""What every section of params.yaml is: a frozen model that refuses unknown keys and takes no value for another."""

import datetime
import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A mapping of params.yaml; the docstring under each field says what it means, with its unit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _require_finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _require_day(value: Any) -> Any:
    try:
        # Without quotes YAML makes a date of it, and DVC refuses a params.yaml that holds one.
        is_day = isinstance(value, str) and datetime.date.fromisoformat(value).isoformat() == value
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError('must be a day as YYYY-MM-DD in quotes, such as "2026-11-21"')
    return value


Finite = Annotated[float, AfterValidator(_require_finite)]
Day = Annotated[str, BeforeValidator(_require_day)]
"""A day as YYYY-MM-DD."""
