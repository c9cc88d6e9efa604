"""The progress of a training as a Prefect artifact, read from what its ranks say, at no cost to them."""

import contextlib
import contextvars
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from flows.outage import is_recorded, tolerate_outage

SECONDS_BETWEEN_LOOKS = 10.0
_RUNS = Path(".work/runs")
_BYTES_OF_LAST_LINES = 8_192


@contextlib.contextmanager
def show_in_prefect(stage: str) -> Iterator[None]:
    """Keep a progress artifact of a training up to date while the block runs; does nothing for another stage."""
    own_name, _, cell = stage.partition("@")
    if own_name != "train" or not is_recorded():
        yield
        return
    is_over = threading.Event()
    # The run that the artifact belongs to is found through the context.
    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(_show, cell, is_over), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=2)


def read_share_done(steps: Path) -> float | None:
    """Return which share of its optimizer steps a training has taken, from its steps.jsonl; None if it says nothing."""
    try:
        with steps.open("rb") as file:
            started = json.loads(file.readline())
            file.seek(max(0, steps.stat().st_size - _BYTES_OF_LAST_LINES))
            lines = file.read().split(b"\n")
        taken = [event.get("last_step") or event.get("step") or 0 for event in map(_parse_event, lines) if event]
        return max(taken, default=0) / int(started["num_steps"])
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return None


def _parse_event(line: bytes) -> dict[str, int]:
    """Return the event of a line, nothing of a line that is cut off."""
    try:
        event: dict[str, int] = json.loads(line)
    except ValueError:
        return {}
    return event


def _show(cell: str, is_over: threading.Event) -> None:
    steps = _RUNS / cell / "steps.jsonl"
    before = steps.stat().st_mtime_ns if steps.exists() else 0
    artifact: UUID | None = None
    shown: float | None = None
    with tolerate_outage(f"no further progress of {cell} is shown"):
        while not is_over.wait(SECONDS_BETWEEN_LOOKS):
            # The file of an earlier launch says nothing about this one.
            is_new = steps.exists() and steps.stat().st_mtime_ns != before
            share = read_share_done(steps) if is_new else None
            if share is None or share == shown:
                continue
            shown, percent = share, round(100 * share, 1)
            if artifact is None:
                artifact = _create(cell, percent)
            else:
                update_progress_artifact(artifact, percent)
        if artifact is not None and (share := read_share_done(steps)) is not None:
            update_progress_artifact(artifact, round(100 * share, 1))


def _create(cell: str, percent: float) -> UUID:
    # Keys take lower-case letters, digits and dashes.
    key = "train-" + "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in cell.lower())
    artifact = create_progress_artifact(percent, key=key, description=f"Training of cell {cell}")
    assert isinstance(artifact, UUID)  # outside of an event loop it is no coroutine
    return artifact
