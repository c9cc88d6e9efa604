"""One rank, the plain module."""

from typing import Any

OPTIONS: dict[str, Any] = {}
NOT_WITH = ()
