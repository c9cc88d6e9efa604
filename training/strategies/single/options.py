"""There are none."""

from typing import Any

OPTIONS: dict[str, Any] = {}
