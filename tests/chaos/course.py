"""A training that is disturbed and goes on, launch after launch, beside the clean run that it has to equal."""

import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from tests.chaos.trial import Trial
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import are_bitwise_equal, events_in, facts_of, weights_at_end

_SECONDS_TO_BE_GONE = 30.0
"""What is left behind stays for ever."""


class Launcher(Protocol):
    """How ranks are started: forked (tests/training/forked_ranks.py) or by torchrun (tests/chaos/torchrun.py)."""

    def start(self, config: dict[str, Any], *, ends_others: bool) -> list[int]:
        """Start the ranks; return process ids to strike at."""

    def wait(self) -> list[int]:
        """Return exit codes when all have ended; zeros mean that the training is done."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is trained."""

    num_rows: int
    """Rows of the range."""
    epochs: int
    """Passes over it; each is a segment."""
    global_batch_size: int
    """Samples per optimizer step."""
    checkpoint_every_steps: int
    """The interval that may be lost."""


@dataclass
class Launch:
    """One start of the ranks, as seen from outside."""

    config: dict[str, Any]
    started: float
    """perf_counter() once its processes were there."""
    pids: list[int]
    """Processes to strike at."""
    reached: int
    """Last optimizer step known to be done, by this launch or the ones before it."""
    steps_lost_at_most: int
    """How many may be lost by what is done to it."""
    is_damaged: bool = False
    """Whether a checkpoint was broken as well, so that one has to be refused."""
    first_step_at: float | None = None
    """perf_counter() when its first step was seen."""
    struck_at: float | None = None
    """perf_counter() when it was disturbed."""
    ended_at: float = math.nan
    """perf_counter() when all its processes were gone."""
    stood_at: int | None = None
    """Step after which it went on; None if it ended before it said so."""
    exit_codes: Sequence[int] = ()
    words: list[str] = field(default_factory=list)
    """What was wrong with it."""
    processes: list[psutil.Process] = field(default_factory=list)
    """All that have to be gone after it."""

    @property
    def stream(self) -> Path:
        """Its events."""
        return Path(self.config["work_dir"]) / "steps.jsonl"

    @property
    def is_running(self) -> bool:
        """Whether any of the processes still runs."""
        return any(_is_running(pid) for pid in self.pids)

    def watch(self, until: float) -> None:
        """Look at the stream until that reading of perf_counter(), or until the ranks have ended."""
        while time.perf_counter() < until and self.is_running:
            self.look()
            time.sleep(0.005)

    def look(self) -> None:
        """Note when the first step was done."""
        if self.first_step_at is None and self.stream.exists() and b'"event": "step"' in self.stream.read_bytes():
            self.first_step_at = time.perf_counter()

    def watch_first_step(self) -> None:
        """Wait for it."""
        while self.first_step_at is None and self.is_running:
            self.watch(until=time.perf_counter() + 0.01)

    def strike(self, number: signal.Signals, pids: Sequence[int] | None = None) -> None:
        """Send a signal to these processes, all by default; those that have ended are spared."""
        self.struck_at = time.perf_counter()
        self.note_processes()
        for pid in self.pids if pids is None else pids:
            try:
                psutil.Process(pid).send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def note_processes(self) -> None:
        """Note all that run now, children included: who has lost its parent is not found any more."""
        for pid in self.pids:
            try:
                process = psutil.Process(pid)
                self.processes += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue

    def take_stock(self) -> None:
        """Read from the stream where the launch went on and how far it came."""
        events = events_in(self.stream)
        reused = 0
        for event in events:
            if event["event"] == "segment_reused":
                reused = event["last_step"]
            elif event["event"] == "segment_started":
                self.stood_at = event["first_step"] - 1 + event["resumed_at_step"]
                break
            elif event["event"] == "launch_finished":
                self.stood_at = reused
        done = [event["step"] for event in events if event["event"] == "step"]
        self.reached = max([self.reached if self.stood_at is None else self.stood_at, *done])


Disturbance = Callable[[Launch], None]
"""Does harm to a running launch."""


class Course:
    """The clean run, and trainings of the same work that are disturbed."""

    def __init__(self, root: Path, launcher: Launcher, size: Size) -> None:
        self._root = root
        self._launcher = launcher
        self.size = size
        self._num_runs = 0
        self._model = make_tiny_model(root / "model", dropout=0.1)
        self._slices = [make_slice(root / "slice", num_rows=size.num_rows)]
        self.clean = self._config("clean")
        only = self.launch(self.clean)
        assert not any(only.exit_codes), only.exit_codes
        seconds = [event["seconds"] for event in events_in(only.stream) if event["event"] == "step"]
        self.step_seconds = sum(seconds) / len(seconds)
        """Mean of a step of the clean run."""
        assert only.first_step_at is not None
        self.start_seconds = only.first_step_at - only.started
        """From a launch to its first step."""

    def disturbed(
        self, disturb: Disturbance, *, num_trials: int, check: Disturbance = lambda _: None
    ) -> Iterator[Trial]:
        """Yield that many trials: disturb every launch of a training until it is done, then begin another training.

        `check` is shown each disturbed launch once it has ended, and adds to its words what was wrong.
        """
        num_done = 0
        while num_done < num_trials:
            launches: list[Launch] = []
            config = self.begin()
            while not launches or any(launches[-1].exit_codes):
                reached = launches[-1].reached if launches else 0
                is_last = num_done + len(launches) >= num_trials
                launches.append(self.launch(config, None if is_last else disturb, reached=reached))
                if is_last:
                    break
                if any(launches[-1].exit_codes):
                    check(launches[-1])
            found = self.judged(launches)
            num_done += len(found)
            yield from found

    def begin(self) -> dict[str, Any]:
        """Return the config of the same work in a new folder."""
        self._num_runs += 1
        return self._config(f"run-{self._num_runs}")

    def launch(self, config: dict[str, Any], disturb: Disturbance | None = None, *, reached: int = 0) -> Launch:
        """Start the ranks, disturb them, wait for their end and for that of all their processes."""
        (Path(config["work_dir"]) / "steps.jsonl").unlink(missing_ok=True)
        pids = self._launcher.start(config, ends_others=True)
        launch = Launch(
            config=config, started=time.perf_counter(), pids=pids, reached=reached,
            steps_lost_at_most=self.size.checkpoint_every_steps,
        )  # fmt: skip
        launch.note_processes()
        if disturb is not None:
            disturb(launch)
        if launch.struck_at is None:
            launch.watch(until=math.inf)
        launch.exit_codes = self._launcher.wait()
        launch.look()
        launch.take_stock()
        _, alive = psutil.wait_procs(launch.processes, timeout=_SECONDS_TO_BE_GONE)
        launch.ended_at = time.perf_counter()
        if alive:
            launch.words.append(f"{len(alive)} processes were left: {alive}")
        return launch

    def judged(self, launches: Sequence[Launch]) -> list[Trial]:
        """Return a trial for each launch of a training but the last, which was not disturbed."""
        config, last = launches[-1].config, launches[-1]
        words = self._problems(config, last, sum(launch.is_damaged for launch in launches))
        found = []
        for index, launch in enumerate(launches[:-1]):
            num_lost, allowed = self._lost(launches[index:])
            problems = [*words, *launch.words]
            if num_lost > allowed:
                problems.append(f"{num_lost} steps were lost, allowed are {allowed}")
            found.append(self._trial(launch, launches[index + 1], num_lost, "; ".join(problems)))
        if not any(trial.problem for trial in found):
            shutil.rmtree(config["work_dir"])
        return found

    def _lost(self, launches: Sequence[Launch]) -> tuple[int, int]:
        """Return how many steps of the first launch had to be done again, and how many may.

        Until the next launch says where it goes on, more may have been done to the same checkpoints. A launch that
        ended before it said so has done no step.
        """
        first, *later = launches
        if first.stood_at is None:
            return 0, 0
        until = next((number for number, each in enumerate(later) if each.stood_at is not None), len(later))
        stood_at = later[until].stood_at if until < len(later) else 0
        allowed = max(each.steps_lost_at_most for each in launches[: until + 1])
        return max(first.reached - (stood_at or 0), 0), allowed

    def _problems(self, config: dict[str, Any], last: Launch, num_damaged: int) -> list[str]:
        if any(last.exit_codes):
            return [f"the last launch ended with {last.exit_codes}"]
        segments = range(len(config["segments"]))
        found = [
            f"segment {index} has other weights than in the clean run"
            for index in segments
            if not are_bitwise_equal(weights_at_end(config, index), weights_at_end(self.clean, index))
        ]
        num_refused = sum(len(facts_of(config, index)["checkpoints_not_used"]) for index in segments)
        if num_refused != num_damaged:
            found.append(f"{num_refused} checkpoints were not used, {num_damaged} were damaged")
        return [*found, *(f"left behind: {path}" for path in Path(config["work_dir"]).rglob("*tmp*"))]

    def _trial(self, launch: Launch, following: Launch, num_lost: int, problem: str) -> Trial:
        """Return the trial; what is lost ends where the next disturbance strikes, whose own loss begins there."""
        assert launch.struck_at is not None
        has_stepped = following.first_step_at is not None
        until = following.first_step_at or following.struck_at or following.ended_at
        seconds = until - launch.struck_at
        return Trial(
            problem=problem,
            seconds_lost=seconds + num_lost * self.step_seconds * has_stepped,
            restart_seconds=seconds if has_stepped else None,
        )

    def _config(self, name: str) -> dict[str, Any]:
        return make_config(
            self._root / name, self._model, self._slices,
            epochs=self.size.epochs, strategy="ddp", world_size=2, cell="2proc", micro_batch_size=1,
            global_batch_size=self.size.global_batch_size, checkpoint_every_steps=self.size.checkpoint_every_steps,
        )  # fmt: skip


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
