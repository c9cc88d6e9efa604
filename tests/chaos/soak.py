"""One long training, and every now and then another fault."""

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.course import Course, Launch, Launcher, Size
from tests.chaos.damage import cut_short, flip_a_bit
from tests.chaos.torchrun import ranks_below
from tests.chaos.trial import Trial
from training.state.receipt import find_problem

_SECONDS_BETWEEN_LOOKS = 0.01
_GRACE_SECONDS = 12.0
"""For who was asked to stop; after that it is killed, as the stage does (tasks/ranks/cell_ranks.py)."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a fault strikes at."""

    launch: Launch
    """The running launch."""
    choose: random.Random
    """Where it comes from what is struck."""

    @property
    def ranks(self) -> list[int]:
        """The ranks, whoever started them."""
        return [rank for pid in self.launch.pids for rank in ranks_below(pid)] or self.launch.pids

    def kill_all(self) -> None:
        """End every process at once, as when the machine goes."""
        self.launch.strike(signal.SIGKILL, [*self.launch.pids, *self.ranks])
        while self.launch.is_running:
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def ask(self, number: signal.Signals, pids: list[int]) -> None:
        """Ask these to stop, and end everything if that takes too long."""
        self.launch.strike(number, pids)
        asked_at = time.perf_counter()
        self.launch.watch(until=asked_at + _GRACE_SECONDS)
        if self.launch.is_running:
            self.kill_all()
            self.launch.struck_at = asked_at

    def partials(self) -> list[Path]:
        """Return the partial checkpoints that the next launch can choose from, oldest first."""
        work = Path(self.launch.config["work_dir"])
        return [
            folder
            for folder in sorted(work.glob("partial/*/step-*"))
            if find_problem(folder, fingerprint=folder.parent.name) is None
            and not (work / "segments" / folder.parent.name).exists()
        ]


Fault = Callable[[Scene], bool]
"""Does harm; returns True if the launch ends of it."""


def kill_one(scene: Scene) -> bool:
    """A rank is killed."""
    scene.launch.strike(signal.SIGKILL, [scene.choose.choice(scene.ranks)])
    return True


def kill_all(scene: Scene) -> bool:
    """All processes are killed."""
    scene.kill_all()
    return True


def terminate(scene: Scene) -> bool:
    """SIGTERM to what was started."""
    scene.ask(signal.SIGTERM, scene.launch.pids)
    return True


def interrupt(scene: Scene) -> bool:
    """SIGINT to every rank."""
    scene.ask(signal.SIGINT, scene.ranks)
    return True


def pause(scene: Scene) -> bool:
    """A rank stands still for a second; nothing ends of it."""
    rank = [scene.choose.choice(scene.ranks)]
    scene.launch.strike(signal.SIGSTOP, rank)
    time.sleep(1.0)
    scene.launch.strike(signal.SIGCONT, rank)
    return False


def leave_half(scene: Scene) -> bool:
    """All processes are killed, in the middle of writing a checkpoint."""
    scene.kill_all()
    for folder in scene.partials()[-1:]:
        half = Path(shutil.copytree(folder, folder.with_name("step-99999999.tmp-0")))
        (half / "receipt.json").unlink()
    return True


def flip(scene: Scene) -> bool:
    """All processes are killed and a bit of the newest checkpoint is flipped."""
    return _damage(scene, flip_a_bit)


def truncate(scene: Scene) -> bool:
    """All processes are killed and a file of the newest checkpoint is cut short."""
    return _damage(scene, cut_short)


def _damage(scene: Scene, harm: Callable[[Path, random.Random], None]) -> bool:
    scene.kill_all()
    partials = scene.partials()
    # With one left, there is no previous one to go on from.
    if len(partials) >= 2:
        harm(scene.choose.choice(sorted(partials[-1].iterdir())), scene.choose)
        scene.launch.is_damaged = True
        scene.launch.steps_lost_at_most *= 2
    return True


FAULTS: list[Fault] = [kill_one, flip, terminate, kill_all, pause, truncate, interrupt, leave_half]
"""All of them come once, in random order, before one comes again; a new one is a new entry."""


def soak_trials(
    root: Path,
    launcher: Launcher,
    size: Size,
    *,
    seconds_between_faults: float,
    num_faults_at_most: int = 1000,
    seed: int = 3,
) -> Iterator[Trial]:
    """Train to the end, a fault coming at random times that are so far apart on average; a trial for each fault.

    They are at least as far apart as a launch takes until its first step, or nothing would ever be trained.
    """
    choose = random.Random(seed)
    course = Course(root, launcher, size)
    between = max(seconds_between_faults, course.start_seconds)
    waiting: list[Fault] = []
    num_faults = num_pauses = 0

    def disturb(launch: Launch) -> None:
        nonlocal num_faults, num_pauses
        while num_faults < num_faults_at_most:
            launch.watch(until=time.perf_counter() + choose.expovariate(1 / between))
            if not launch.is_running:
                return
            num_faults += 1
            if not waiting:
                waiting.extend(choose.sample(FAULTS, len(FAULTS)))
            if waiting.pop()(Scene(launch=launch, choose=choose)):
                return
            num_pauses += 1

    config, launches = course.begin(), []
    while not launches or any(launches[-1].exit_codes):
        reached = launches[-1].reached if launches else 0
        launches.append(course.launch(config, disturb, reached=reached))
    trials = course.judged(launches)
    yield from trials
    for _ in range(num_pauses):
        yield Trial(problem="" if all(trial.survived for trial in trials) else "the same training", seconds_lost=1.0)
