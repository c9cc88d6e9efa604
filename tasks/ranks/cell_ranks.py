"""The ranks of a cell: on which device, and how a stage starts them, follows what they say and ends them."""

import contextlib
import datetime
import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from tasks.params import Params
from tasks.params.train import NOT_FOR_RANKS
from tasks.process.failure import (
    STORAGE_ERRORS,
    ConfigurationError,
    DataError,
    DistributedError,
    DivergedError,
    ExitCode,
    OutOfMemoryError,
    PreemptedError,
    ResourceError,
    StageError,
)
from tasks.ranks import make_code_arguments
from tasks.ranks.launchers import Launch, Nodes, load_launcher
from tasks.ranks.watchdog import Watchdog
from tasks.records.manifests import MachineFile
from training.config import LOSS_CHUNK_ROWS, SegmentConfig, TrainingConfig
from training.process.failure import FAILURES, read_failures
from training.process.files import write_json

_log = logging.getLogger(__name__)

_GRACE_SECONDS, _MOST_GRACE_SECONDS = 12.0, 600.0
"""That ranks have to end, beside what their checkpoint may take, and with it at most; only as long as they move on."""
_LAUNCHES_KEPT = 5
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_FOR_THE_OTHERS = 10.0
_KINDS: dict[int, type[StageError]] = {
    ExitCode.CONFIGURATION: ConfigurationError,
    ExitCode.DATA: DataError,
    ExitCode.RESOURCES: ResourceError,
    ExitCode.DIVERGED: DivergedError,
    ExitCode.PREEMPTED: PreemptedError,
}
"""What the exit code of a rank means; any other is a DistributedError."""


class _StuckError(Exception):
    """Ranks that were asked to save and end do neither."""


def choose_device(cell: str, params: Params, machine: MachineFile) -> Literal["cpu", "cuda"]:
    """Return "cuda" where the machine has NVIDIA GPUs, enough for the cell (tasks/machine/usable_gpus.py), else "cpu".

    Of a cell on several nodes the ranks on one of them count.
    """
    if machine.num_gpus:
        return "cuda"
    wanted, threads = params.cells[cell].ranks_per_node, params.train.threads_per_rank
    if wanted * threads > machine.num_cpus:
        _log.warning(
            "%s: %d ranks x %d threads share %d CPU cores: the cell cannot show what as many cores would give",
            cell, wanted, threads, machine.num_cpus,
        )  # fmt: skip
    return "cpu"


def make_ranks_config(
    cell: str,
    params: Params,
    *,
    device: Literal["cpu", "cuda"],
    base_model: Path,
    work: Path,
    segments: Iterable[SegmentConfig],
    **others: Any,
) -> TrainingConfig:
    """Return what the ranks of a cell are told; `others`: fields of TrainingConfig that are not params.yaml's."""
    spread, train = params.cells[cell], params.train_of(cell)
    return TrainingConfig(
        **train.model_dump(exclude={*NOT_FOR_RANKS, "loss_chunk_rows"}),
        loss_chunk_rows=train.loss_chunk_rows or LOSS_CHUNK_ROWS[device],
        cell=cell,
        strategy=spread.strategy,
        options=spread.options,
        world_size=spread.world_size,
        oversubscribe=spread.oversubscribe,
        workload=params.workload,
        device=device,
        model_dir=base_model.resolve(),
        model_name=params.model.name,
        work_dir=work,
        segments=tuple(segments),
        statistics_rows=params.count_statistics_rows(cell),
        **{"heldout_dir": Path(), "heldout_digest": "", **others},
    )


class EventReader:
    """The events of a JSON-lines file that another process appends to, each given once and only when whole."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path = path
        self._position = 0
        self.last: dict[str, Any] = {}
        """The newest event that was read; empty before the first."""

    def read_new(self) -> list[dict[str, Any]]:
        """Return the events that came since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                block = file.read()
        except FileNotFoundError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._position += len(whole)
        events = [json.loads(line) for line in whole.splitlines()]
        if events:
            self.last = events[-1]
        return events


def find_nodes(cell: str, params: Params) -> Nodes | None:
    """Return the machines of a cluster that the cell's ranks are on; None where a launcher knows this one alone."""
    if params.cells[cell].launcher != "ray":
        return None
    return Nodes(
        num_nodes=params.cells[cell].num_nodes,
        address=params.ray.address,
        wait_seconds=params.ray.wait_seconds,
        # Before the watchdog finds that ranks hang there: what is lost is the node.
        silence_seconds=params.train.watchdog_seconds / 2,
    )


def run_ranks(
    config: TrainingConfig,
    *,
    launcher: str,
    nodes: Nodes | None = None,
    stop: threading.Event,
    follow: Callable[[list[dict[str, Any]]], None],
    arguments: Sequence[str] = (),
    watchdog_seconds: float = 60.0,
) -> None:
    """Start the ranks that the config describes and wait for their end.

    `follow` is given their events as they come; `arguments` go to the ranks' command line. Once `stop` is set the ranks
    finish their step and save; when nothing comes from a rank for `watchdog_seconds` in a step they are ended. Raises
    the StageError of what went wrong; what was finished or saved until then stays in the config's work_dir.
    """
    cell, work = config.cell, config.work_dir
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / "config.json", config.as_json())
    shutil.rmtree(work / FAILURES, ignore_errors=True)
    stream = EventReader(work / "steps.jsonl")
    waits = 0.0 if nodes is None else nodes.wait_seconds
    with Watchdog(world_size=config.world_size, step_seconds=watchdog_seconds, more_start_seconds=waits) as watchdog:
        logs = work / "logs"
        if logs.is_dir():
            for old in sorted(logs.iterdir())[: -(_LAUNCHES_KEPT - 1)]:
                shutil.rmtree(old, ignore_errors=True)
        launch = load_launcher(launcher).start(
            work / "config.json",
            world_size=config.world_size,
            threads_per_rank=config.threads_per_rank,
            log_folder=logs / datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f"),
            arguments=["--heartbeat", str(watchdog.file), *make_code_arguments(), *arguments],
            nodes=nodes,
        )
        hang = None
        try:
            is_running = True
            while is_running and not stop.is_set() and hang is None and not _is_left_over(work / FAILURES):
                is_running = launch.is_running
                follow(stream.read_new())
                stop.wait(_SECONDS_BETWEEN_LOOKS)
                hang = watchdog.look() if is_running else None
            if stop.is_set():
                _log.info("%s: asked to stop; the ranks finish their step and save", cell)
            if hang is not None:
                launch.ask_for_stacks()
                watchdog.ask_for_stacks()
        finally:
            grace_seconds = min(_GRACE_SECONDS + watchdog.seconds_to_save, _MOST_GRACE_SECONDS)
            asked_at = time.monotonic()

            def go_on() -> None:
                # At an update that is checked the ranks wait for what is found of it before they save.
                follow(stream.read_new())
                if watchdog.is_stuck(_GRACE_SECONDS) and time.monotonic() - asked_at > _GRACE_SECONDS:
                    raise _StuckError

            with contextlib.suppress(_StuckError):
                launch.stop(grace_seconds=grace_seconds if stop.is_set() else 0.0, meanwhile=go_on)
            watchdog.end_ranks()
    follow(stream.read_new())
    if hang is not None and not stop.is_set():
        for rank in set(hang.ranks).difference(hang.stopped):
            _log.error("the end of what rank %d says of itself, its stacks:\n%s", rank, launch.read_last_words(rank))
        raise DistributedError(
            f"cell {cell}: {hang}; the stacks of the ranks are in {launch.log_folder}; run again, it goes on from the "
            "last checkpoint"
        )
    if launch.exit_code() != 0:
        raise _make_failure_error(cell, stream.last, launch, work=work, is_stopped=stop.is_set())


def _is_left_over(folder: Path) -> bool:
    """Return whether a rank failed a while ago and others still run: they wait for it where no error ends them."""
    failures = read_failures(folder) if folder.exists() else []
    return bool(failures) and time.monotonic() - float(failures[0]["at"]) > _SECONDS_FOR_THE_OTHERS


def _make_failure_error(cell: str, last: dict[str, Any], launch: Launch, *, work: Path, is_stopped: bool) -> StageError:
    """Return the failure that was first, by the ranks' own words, or else by what launcher and disk say of their end.

    A rank that was killed left no words, and those of the others are then about it.
    """
    if is_stopped:
        return PreemptedError(f"cell {cell} was stopped; the next run goes on from a checkpoint, if there is one")
    failures = read_failures(work / FAILURES) if launch.find_killed_rank() is None else []
    if not failures and last.get("event") == "stopped":
        failures = [{**last, "rank": 0}]
    failure = failures[0] if failures else {}
    first, _, words = launch.explain_end(rank=failure.get("rank")).partition("\n")
    kind = _KINDS.get(failure["exit_code"] if failure else launch.exit_code(), DistributedError)
    if failure.get("error") == "OutOfMemoryError":
        kind = OutOfMemoryError
    if not failure or kind is DistributedError:
        _log.error("%s\n%s", first, words)
    if failure:
        return kind(f"cell {cell}: {failure['reason']} ({first})")
    # A disk too full for a checkpoint may have been too full for the words that would have said so.
    if kind is DistributedError and _is_full(work):
        kind = ResourceError
    remedy = f"make room on the disk of {work} and run again" if kind is ResourceError else "run again"
    return kind(f"cell {cell}: {first}; {remedy}, it goes on from the last checkpoint")


_SMALL_FILE_BYTES = 64 * 1024
"""More than the files of the ranks' rendezvous, which are gone when it is asked."""


def _is_full(folder: Path) -> bool:
    """Whether the disk takes not even a small file, beside what the launcher has freed: its log may hold nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            return file.write(bytes(_SMALL_FILE_BYTES)) < _SMALL_FILE_BYTES
    except OSError as error:
        return error.errno in STORAGE_ERRORS
