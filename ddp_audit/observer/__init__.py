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
def step(*, ids: Iterable[int] | None = None, num_tokens: int | None = None) -> Iterator[None]:
    """Say which rows an optimizer step of this rank learns from, and how many tokens, around that step.

    `ids`: of the rows, the same on every rank and in every run for the same row. The audit then knows the rows of a
    script that has no DataLoader.
    """
    if observer is not None:
        said = {"ids": None if ids is None else [int(item) for item in ids], "num_tokens": num_tokens}
        observer.state(**{name: value for name, value in said.items() if value is not None})
    yield


def say_asked(**names: Any) -> None:
    """Say what the script was asked for, such as `epochs=3`, `max_steps=-1` or `resume="last.pt"`."""
    if observer is not None:
        observer.state_asked(names)
