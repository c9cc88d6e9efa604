"""What the link between a script's ranks can do by itself: the same ranks, right after the script, with nothing beside.

An exchange inside a step takes longer than that where ranks wait for each other, or computing takes its share.
"""

import json
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tasks.auditing.launched import Launched
from tasks.auditing.request import Request
from tasks.auditing.split import list_timed_steps
from tasks.process import wording
from tasks.process.failure import PreemptedError
from tasks.ranks.one_machine import RanksHere

_PROJECT = Path(__file__).resolve().parents[2]
_MOST_SECONDS = 120.0
_MOSTLY = 0.7
_NAMES = ("all_reduce", "allreduce", "allreduce_coalesced")
"""What torch's flight recorder calls an all-reduce."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LinkUse:
    """The all-reduces of a cell's steps, beside what they take when nothing else is done."""

    number: float
    """All-reduces per step."""
    num_bytes: float
    """Of all of them, per step."""
    link_seconds: float
    """Per step, if the ranks do nothing else."""
    seen_seconds: list[float]
    """Rank by rank, per step of the script: asked for by it, and by DDP's own clock."""
    backend: str
    """gloo or nccl."""


def measure_link(request: Request, launched: Launched, *, stop: threading.Event) -> LinkUse | str | None:
    """Return how the link was used; why that is not known; None on one rank, or where nothing was exchanged so.

    Takes as long as starting the ranks again, and some seconds.
    """
    world_size = request.cells[launched.cell]
    exchanged = _find_exchanged(launched)
    if world_size == 1 or exchanged is None:
        return None
    number, num_bytes = exchanged
    first = launched.ranks[0].steps[0]
    _log.info("%s: measuring the link between its ranks, with nothing beside", launched.cell)
    sweep = _sweep(request, launched.folder / "link", [round(num_bytes / number)], world_size, first, stop=stop)
    if isinstance(sweep, str):
        return sweep
    seconds = number * float(sweep["points"][0]["median_seconds"])
    return LinkUse(number, num_bytes, seconds, list_exchange_seconds(launched), str(sweep["backend"]))


def list_exchange_seconds(launched: Launched) -> list[float]:
    """Return the seconds of exchange per timed step, rank by rank; empty where neither DDP nor the script timed any."""
    found = []
    for rank in launched.ranks:
        steps = list_timed_steps(rank.steps)
        by_clock = [step["ddp"].get("avg_backward_comm_time", 0) / 1e9 for step in rank.steps if step.get("ddp")]
        synchronised = [sum(bool(micro.get("is_synchronised")) for micro in step["micros"]) for step in steps]
        asked_for = [step["seconds"].get("exchange", 0.0) for step in steps]
        if steps:
            found.append(fmean(asked_for) + (by_clock[-1] * fmean(synchronised) if by_clock else 0.0))
    return found if any(found) else []


def _find_exchanged(launched: Launched) -> tuple[float, float] | None:
    """Return all-reduces per step and their bytes, of the steps whose exchanges were all told; None without any."""
    steps = [step for step in launched.ranks[0].steps[1:] if step.get("traffic") and not step.get("num_inside")]
    per_step = [[step["traffic"][name] for name in _NAMES if name in step["traffic"]] for step in steps]
    number, num_bytes = (sum(one[at] for kinds in per_step for one in kinds) for at in (0, 1))
    return (number / len(steps), num_bytes / len(steps)) if num_bytes else None


def _sweep(
    request: Request,
    folder: Path,
    sizes: list[int],
    world_size: int,
    first: dict[str, object],
    *,
    stop: threading.Event,
) -> dict[str, list[dict[str, float]]] | str:
    device = "cuda" if first.get("device") == "cuda" else "cpu"
    out = folder / "sweep.json"
    # The script could write here, and what it left is no measurement.
    out.unlink(missing_ok=True)
    paths = (str(_PROJECT), os.environ.get("PYTHONPATH"))
    launch = RanksHere.run_script(
        [
            "-m",
            "tasks.auditing.link_rank",
            f"--ranks={world_size}",
            f"--device={device}",
            f"--out={out.absolute()}",
            "--bytes",
            *map(str, sizes),
        ],
        python=request.python,
        folder=_PROJECT,
        # The project, and behind it what the script's own interpreter may find its torch by.
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        world_size=world_size,
        threads_per_rank=1,
        log_folder=folder / "logs",
    )
    until = time.monotonic() + _MOST_SECONDS
    try:
        while launch.is_running and not stop.is_set() and time.monotonic() < until:
            stop.wait(0.1)
    finally:
        launch.stop(grace_seconds=0.0)
    if stop.is_set():
        raise PreemptedError(f"the audit was stopped while the link was measured; its log is in {launch.log_folder}")
    if not out.exists():
        return launch.explain_end().splitlines()[0]
    found: dict[str, list[dict[str, float]]] = json.loads(out.read_text())
    return found if found["points"] else str(found["stopped_because"])


def tell_link(cell: str, use: LinkUse | str) -> str:
    """Return what the link explains of a cell's exchange, in whole sentences."""
    if isinstance(use, str):
        return f"{cell}: what its link can do by itself is not known: {use}."
    told = (
        f"{cell}: a step exchanges {use.num_bytes / 2**20:.3g} MiB in {use.number:.3g} all-reduces, for which its "
        f"ranks need {wording.format_duration(use.link_seconds)} over {use.backend} with nothing beside it, right "
        "after the script"
    )
    if not use.seen_seconds:
        return f"{told}. How long they take within a step is not observable."
    mean, least = fmean(use.seen_seconds), min(use.seen_seconds)
    share = min(use.link_seconds / mean, 1.0)
    cause = (
        "the link bounds it"
        if share >= _MOSTLY
        else "the rest is waiting for slower ranks, or computing at the same time"
    )
    return (
        f"{told}. Within its steps they took {wording.format_duration(mean)}, on the rank that waited least "
        f"{wording.format_duration(least)}: the link explains {wording.format_percent(share)} of it, {cause}."
    )
