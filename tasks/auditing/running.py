"""A script under torchrun with the observer in it: started, followed and ended; nothing of it is left running."""

import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path

import psutil

from tasks.auditing.launched import Launched
from tasks.auditing.rank_record import read_rank
from tasks.auditing.request import Request
from tasks.process.failure import PreemptedError
from tasks.ranks.live import EventReader
from tasks.ranks.one_machine import RanksHere
from tasks.ranks.watchdog import Hang, Watchdog
from training.process.redaction import redact

_log = logging.getLogger(__name__)

_HOOK = Path(__file__).resolve().parents[2] / "ddp_compare_observer" / "hook"
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_WORDS = 10.0
_GRACE_SECONDS = 5.0
_KILLED_BY_US = -signal.SIGKILL


def launch_script(
    request: Request, cell: str, folder: Path, *, stop: threading.Event, is_alone: bool = False
) -> Launched:
    """Run the script on the ranks of a cell until it ends, hangs or has made the steps asked for.

    Its record and all that it prints are in `folder`. With `is_alone` a single rank looks for accelerate as if python
    had started it and not torchrun. Raises PreemptedError once `stop` is set.
    """
    folder.mkdir(parents=True)
    world_size = request.cells[cell]
    readers = [EventReader(folder / f"rank-{rank}.jsonl") for rank in range(world_size)]
    num_steps = [0] * world_size
    hang: Hang | None = None
    was_ended = False
    with Watchdog(world_size=world_size, step_seconds=request.hang_seconds) as watchdog:
        launch = RanksHere.run_script(
            request.words_for(cell),
            python=request.python,
            folder=request.folder,
            environment=_make_environment(folder, watchdog.file, is_alone=is_alone),
            world_size=world_size,
            threads_per_rank=max(1, (os.cpu_count() or 1) // max(request.cells.values())),
            log_folder=folder / "logs",
        )
        said_at = time.monotonic()
        try:
            is_running = True
            while is_running and not stop.is_set() and hang is None and not was_ended:
                is_running = launch.is_running
                for rank, reader in enumerate(readers):
                    num_steps[rank] += count_new_steps(reader)
                was_ended = request.most_steps is not None and min(num_steps) >= request.most_steps
                if time.monotonic() - said_at > _SECONDS_BETWEEN_WORDS:
                    said_at = time.monotonic()
                    _log.info("%s: %d optimizer steps", cell, min(num_steps))
                stop.wait(_SECONDS_BETWEEN_LOOKS)
                hang = watchdog.look() if is_running else None
            if hang is not None:
                watchdog.ask_for_stacks()
        finally:
            launch.stop(grace_seconds=_GRACE_SECONDS if was_ended or stop.is_set() else 0.0)
            watchdog.end_ranks()
            ranks = [read_rank(folder / f"rank-{rank}.jsonl", rank) for rank in range(world_size)]
            _end_sessions({rank.start.get("pid") for rank in ranks if rank.start is not None} - {os.getsid(0)})
    if stop.is_set():
        raise PreemptedError(f"the audit was stopped; what {cell} did until then is in {folder}")
    exit_code = launch.exit_code()
    ending = ""
    if hang is not None:
        ending = f"{hang}; the stacks of the ranks are in {launch.log_folder}"
    elif exit_code != 0 and not was_ended:
        ending = redact(launch.explain_end())
    exit_code = exit_code if hang is None else _KILLED_BY_US
    return Launched(cell, folder, ranks, exit_code, ending, is_alone=is_alone, was_ended=was_ended)


def count_new_steps(reader: EventReader) -> int:
    """Return the steps in what a rank has written since the last look."""
    try:
        return sum(event.get("kind") == "step" for event in reader.read_new())
    except (ValueError, AttributeError, RecursionError):
        # The script has the file open, too, and may have written into it what the observer never does.
        return 0


def _make_environment(folder: Path, heartbeat: Path, *, is_alone: bool) -> dict[str, str]:
    """Return the script's environment: ours, without what this project's commands set for themselves, and the hook."""
    ours = dict(os.environ)
    before = ours.get("PYTHONPATH", "")
    for name in ("SCRIPT", "CELLS", "FOLDER", "INTERPRETER", "LAUNCHES", "STEPS", "HANG_SECONDS", "MAKEFLAGS"):
        ours.pop(name, None)
    return {
        **ours,
        "PYTHONPATH": os.pathsep.join([str(_HOOK), *[before] * bool(before)]),
        "DDP_COMPARE_PYTHONPATH": before,
        "DDP_COMPARE_AUDIT": str(folder.absolute()),
        "DDP_COMPARE_HEARTBEAT": str(heartbeat),
        **({"DDP_COMPARE_ALONE": "1"} if is_alone else {}),
    }


def _end_sessions(pids: set[object]) -> None:
    """Kill what a rank has started and left running: whatever is still in the session that the rank led."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid > 0 and os.getsid(process.pid) in pids:
                process.kill()
