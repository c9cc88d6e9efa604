"""Importing transformers without the packages that it takes along only because they are installed."""

import contextlib
import sys
from collections.abc import Iterator

_TAKEN_ALONG = ("scipy", "sklearn", "torchvision")
"""For losses of object detection, for generation with helpers and for images: 50 MiB and half a second per rank."""


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """Let what is imported inside find them missing, unless they are imported already; afterwards they are there.

    transformers asks once per process and remembers the answer: where it may have asked before, nothing is hidden.
    """
    hidden = [] if "transformers" in sys.modules else [name for name in _TAKEN_ALONG if name not in sys.modules]
    for name in hidden:
        # The import system takes it for a package that is not installed.
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
