"""Watches a training script from inside its ranks, and writes down what it does; torch is all that it needs.

An audit loads it into a script that knows nothing of it (hook/sitecustomize.py). Whatever fails here is written down
and switches the observer off; it never reaches the script.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

observer: Any = None
"""Of this process; None unless an audit has started it."""


@contextlib.contextmanager
def step(*, ids: Iterable[int]) -> Iterator[None]:
    """Say which rows an optimizer step of this rank learns from, around that step.

    `ids`: of the rows, the same on every rank and in every run for the same row. The audit then knows the rows of a
    script that has no DataLoader.
    """
    if observer is not None:
        observer.state(ids=list(map(int, ids)))
    yield


def say_asked(**names: Any) -> None:
    """Say what the script was asked for, such as `epochs=3`, `max_steps=-1` or `resume="last.pt"`."""
    if observer is not None:
        observer.state_asked(names)
