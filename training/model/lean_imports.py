"""Importing transformers without the packages that it takes along only because they are installed."""

import contextlib
import sys
from collections.abc import Iterator

from training.process.collector import pause_collector

_TAKEN_ALONG = ("scipy", "sklearn", "torchvision")
"""For losses of object detection, for generation with helpers and for images: 50 MiB and half a second per rank."""


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """Let what is imported inside find them missing, unless they are imported already; afterwards they are there.

    transformers asks once per process and remembers the answer: where it may have asked before, nothing is hidden.
    """
    with hide_packages(*(() if "transformers" in sys.modules else _TAKEN_ALONG)), pause_collector():
        yield


@contextlib.contextmanager
def hide_packages(*names: str) -> Iterator[None]:
    """Let what is imported inside find packages missing, unless they are imported already; afterwards they are there.

    Around `save_pretrained`, which imports deepspeed where it is installed: seconds, and a warning that is none.
    """
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        # The import system takes it for a package that is not installed.
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
