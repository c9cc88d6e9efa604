"""A script with the observer in it: started on the ranks of a cell, followed, and ended with all that it started."""

import contextlib
import logging
import math
import mmap
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ddp_audit.asked import Request, StoppedError
from ddp_audit.fresh_folder import make_fresh_folder
from ddp_audit.process.lifeline import PRCTL
from ddp_audit.process.redaction import redact, redact_words
from ddp_audit.process.torchrun import NO_SHARED_STORE, Launch, format_end, list_torchrun_words, read_last_lines
from ddp_audit.records import Launched, RankRecord, is_step, read_rank

_SET_CHILD_SUBREAPER = 36
_SECONDS_TO_END = 2.0
_MOST_ROUNDS = 50


class Started(Launch):
    """One command line and all that comes of it.

    What it starts stays a descendant of this process however it forks: while it runs, and there is one at a time, whose
    parent has ended is given to us.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], logs: Path) -> None:
        _adopt_orphans(is_wanted=True)
        self._before = list_descendants()
        self.left: list[str] = []
        """What still ran when the command line had ended by itself: number and words of each process."""
        super().__init__(command, log_folder=logs, environment=environment, folder=folder)

    def stop(self, *, grace_seconds: float) -> None:
        """End it (SIGTERM, after the grace time SIGKILL), and all that it has started."""
        try:
            if self.is_running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)
                _wait(lambda: not self.is_running, grace_seconds)
            else:
                _wait(lambda: not self._list_own(), _SECONDS_TO_END)
                self.left = [_describe(pid) for pid in self._list_own()]
        finally:
            for _ in range(_MOST_ROUNDS):
                for pid in self._list_own():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if _wait(lambda: not self._list_own(), 0.02):
                    break
            self._process.wait()
            self._log_cap.close()
            _adopt_orphans(is_wanted=False)

    def explain_end(self, *, rank: int | None = None) -> str:
        """Return who caused the end and how, and on further lines the last words."""
        if rank is not None or self.find_root_cause() is not None:
            return super().explain_end(rank=rank)
        return format_end("it", self._process.wait(), words=read_last_lines(self.file), folder=self.log_folder)

    def _list_own(self) -> set[int]:
        """Return the processes that came of it and still run; those that have ended are taken leave of."""
        for pid in list_descendants() - self._before - {self._process.pid}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._process.poll()
        return list_descendants() - self._before


_WORDS, _PID, _POSITION = 8, 0, 1
"""Of each rank in the memory that they write into (observer/timeline.py)."""
_SECTIONS = ("start", "data", "forward", "backward", "update", "collective", "checkpoint", "evaluation")
_START_SECONDS = 900.0
_SECONDS_FOR_STACKS = 1.0


class Places:
    """Where ranks are, by the memory in which they say so; a context that owns it."""

    def __init__(self, *, world_size: int, patience: float) -> None:
        self._patience = patience
        # Memory, where the machine has a folder of it: a page of a file on a disk may block whoever writes to it.
        memory = Path("/dev/shm")
        handle, name = tempfile.mkstemp(prefix="ddp-audit-", dir=memory if memory.is_dir() else None)
        os.truncate(handle, world_size * _WORDS * 8)
        words = memoryview(mmap.mmap(handle, 0)).cast("q")
        self._ranks = [words[rank * _WORDS : (rank + 1) * _WORDS] for rank in range(world_size)]
        os.close(handle)
        self.file = Path(name)
        self._last, self._since = [0], time.monotonic()

    def __enter__(self) -> "Places":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.unlink(missing_ok=True)

    def find_hang(self) -> str:
        """Return which ranks hang, in words; empty where none does, as long as one moves that others may wait for."""
        places = [words[_POSITION] for words in self._ranks]
        if places != self._last:
            self._last, self._since = places, time.monotonic()
        seconds, least = time.monotonic() - self._since, min(places)
        if seconds < (self._patience if least else max(self._patience, _START_SECONDS)):
            return ""
        # All of one place together: those that are behind, then the others.
        who = {place: [str(rank) for rank, its in enumerate(places) if its == place] for place in sorted(set(places))}
        texts = []
        for place, ranks in who.items():
            verb = "hangs" if place == least else "is"
            section, step = _SECTIONS[place & 0xFF], place >> 32
            texts.append(f"rank {' and '.join(ranks)} {verb} in section {section} of step {step}")
        texts[0] += f": nothing for {seconds:.0f} s"
        return "; ".join(texts)

    def ask_for_stacks(self) -> None:
        """Have every rank write its Python stacks to its log."""
        for words in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                if words[_PID]:
                    os.kill(words[_PID], signal.SIGUSR1)
        time.sleep(_SECONDS_FOR_STACKS)


_log = logging.getLogger(__name__)

_HOOK = Path(__file__).resolve().parent / "observer" / "hook"
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_BETWEEN_WORDS = 10.0
_GRACE_SECONDS = 5.0
_FEWEST_STEPS = 4


def launch_script(
    request: Request,
    cell: str,
    folder: Path,
    *,
    stop: threading.Event,
    number: int = 1,
    is_alone: bool = False,
    leave_out: Path | None = None,
) -> Launched:
    """Run the script on the ranks of a cell until it ends, hangs or has made the steps asked for.

    Its record and all that it prints are in `folder`; it runs in a copy of its own folder, as far as that can be
    copied, so that it finds nothing of the launches before. With `is_alone` python starts its single rank, as without
    torchrun. Raises StoppedError once `stop` is set.
    """
    folder.mkdir(parents=True)
    world_size, files = request.cells[cell], [folder / f"rank-{rank}.jsonl" for rank in range(request.cells[cell])]
    readers, num_steps = [StepCounter(file) for file in files], 0
    hang, began, was_ended, is_running = "", 0.0, False, True
    copy = make_fresh_folder(request.folder, folder / "copy", leave_out=leave_out or folder)
    if copy is None and number == 1:
        text = "%s: %s is too large to be copied, so that launches may meet each other's files"
        _log.warning(text, cell, request.folder)
    with Places(world_size=world_size, patience=request.hang_seconds) as places:
        command, environment = _make_command(request, cell, folder, number=number, is_alone=is_alone)
        words = [_move(word, request.folder, copy) for word in request.words_for(cell, number)]
        before = os.environ.get("PYTHONPATH", "")
        if request.launcher:
            # A script that takes all GPUs that it sees has as many as the cell has ranks.
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(world_size)))).split(",")
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen[:world_size])
        launch = Started(
            [*command, *words],
            folder=copy or request.folder,
            environment={
                **{name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
                "PYTHONPATH": os.pathsep.join(filter(None, [str(_HOOK), before])),
                "DDP_COMPARE_PYTHONPATH": before,
                "DDP_COMPARE_AUDIT": str(folder.absolute()),
                "DDP_COMPARE_HEARTBEAT": str(places.file),
            }
            | environment,
            logs=folder.absolute() / "logs",
        )
        said_at = time.monotonic()
        try:
            while is_running and not stop.is_set() and not hang and not was_ended:
                is_running = launch.is_running
                num_steps = min([reader.count() for reader in readers])
                began = began or (time.monotonic() if num_steps else 0.0)
                was_ended = is_running and _is_enough(request, num_steps, began)
                if time.monotonic() - said_at > _SECONDS_BETWEEN_WORDS:
                    said_at = time.monotonic()
                    _log.info("%s: %d optimizer steps", cell, num_steps)
                stop.wait(_SECONDS_BETWEEN_LOOKS)
                hang = places.find_hang() if is_running else ""
            if hang:
                places.ask_for_stacks()
        finally:
            launch.stop(grace_seconds=_GRACE_SECONDS if was_ended or stop.is_set() else 0.0)
            ranks = [_move_paths(read_rank(file, rank), copy, request.folder) for rank, file in enumerate(files)]
            if copy is not None:
                shutil.rmtree(folder / "copy", ignore_errors=True)
    if stop.is_set():
        raise StoppedError(f"the audit was stopped; what {cell} did until then is in {folder}")
    exit_code, ending = launch.exit_code(), ""
    if hang:
        ending = f"{hang}; the stacks of the ranks are in {launch.log_folder}"
    elif exit_code != 0 and not was_ended:
        ending = redact(launch.explain_end())
    if launch.left:
        _log.warning("%s left running, and was ended: %s", cell, redact(", ".join(launch.left)))
    return Launched(
        cell, folder, ranks, -signal.SIGKILL if hang else exit_code, ending, is_alone=is_alone, was_ended=was_ended,
        is_apart=copy is not None, left=launch.left,
    )  # fmt: skip


def _is_enough(request: Request, num_steps: int, began: float) -> bool:
    """Return whether a launch has made the steps that are asked for, or a few in as long as it may take."""
    is_late = request.most_seconds is not None and time.monotonic() - began > request.most_seconds
    return num_steps >= (_FEWEST_STEPS if is_late else request.most_steps or math.inf)


class StepCounter:
    """Counts the steps that a rank has written, as it writes them."""

    def __init__(self, file: Path) -> None:
        self._file, self._position, self._number = file, 0, 0

    def count(self) -> int:
        """Return the whole lines of steps until now."""
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._position)
                block = file.read()
            whole = block[: block.rfind(b"\n") + 1]
            self._position += len(whole)
            self._number += sum(map(is_step, whole.splitlines()))
        return self._number


def _make_command(
    request: Request, cell: str, folder: Path, *, number: int, is_alone: bool
) -> tuple[list[str], dict[str, str]]:
    """Return what stands before the words of the script, and what the environment is told beside."""
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(request.cells.values())))}
    if is_alone:
        return [request.python], {**threads, "DDP_COMPARE_ANY_PROCESS": "this"}
    if request.launcher:
        return request.launcher_for(cell, number), {**threads, "DDP_COMPARE_ANY_PROCESS": "any"}
    logs = folder.absolute() / "logs"
    meeting = logs / "rendezvous"
    shutil.rmtree(meeting, ignore_errors=True)
    meeting.mkdir(mode=0o700, parents=True)
    words = [request.python, *list_torchrun_words(meeting, world_size=request.cells[cell], logs=logs)]
    return words, threads | NO_SHARED_STORE


def _move(word: str, folder: Path, copy: Path | None) -> str:
    """Return a path into the folder as one into its copy."""
    if copy is None or not word.startswith(f"{folder}/") or not Path(word).parent.is_dir():
        return word
    return f"{copy.absolute()}{word.removeprefix(str(folder))}"


def _move_paths(rank: RankRecord, copy: Path | None, folder: Path) -> RankRecord:
    """Return the record with paths that lead into the folder, where the script has seen those of its copy."""
    # As the script sees it: without links.
    here = f"{copy and copy.resolve()}/"
    for line in chain(*rank.lines.values()):
        if str(line.get("path")).startswith(here):
            line["path"] = f"{folder}/{line['path'].removeprefix(here)}"
    return rank


def list_descendants() -> set[int]:
    """Return the processes that this one or its children have started; none where the system does not tell."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            # Who is dead and not ours waits for a parent of its own.
            if state != "Z" or int(parent) == os.getpid():
                children[int(parent)].append(int(entry.parent.name))
    results, at = set(), [os.getpid()]
    while at:
        below = children[at.pop()]
        results |= {*below}
        at += below
    return results


def _adopt_orphans(*, is_wanted: bool) -> None:
    if PRCTL is not None:
        PRCTL(_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def _describe(pid: int) -> str:
    words = ""
    with contextlib.suppress(OSError):
        words = " ".join(redact_words(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0"))).strip()
    return f"{pid} ({words[-80:]})" if words else str(pid)


def _wait(is_over: Callable[[], bool], seconds: float) -> bool:
    """Return whether it is over, at the latest after so long."""
    until = time.monotonic() + seconds
    while not (done := is_over()) and time.monotonic() < until:
        time.sleep(0.02)
    return done
