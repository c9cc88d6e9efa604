"""A whole comparison of which every class of process is killed in every stage, typed by hand and served."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from ruamel.yaml import YAML

from tests.chaos.trial import Trial
from tests.conftest import PROJECT
from tests.flows.toy_project import free_port
from tests.integration.prefect_api import Api
from tests.processes import left_of, new_mark, none_left_of
from tests.training.conftest import are_bitwise_equal
from tests.workspace import SMALL, Workspace

CELLS = ("1proc", "2proc")
STAGES = (
    "fingerprint", "download", "slice", "measure", "train 1proc", "train 2proc", "evaluate", "report", "upload",
)  # fmt: skip
_RANKS_IN = ("measure", "train 1proc", "train 2proc")

_WORDS = {
    "shell": "make -o .venv/.ready compare; true",
    "make": "make -o .venv/.ready compare ",
    "flow": "-m flows ",
    "run": "multiprocessing.spawn import spawn_main",
    "serve": "-m flows.serve ",
    "server": "-m flows.server ",
    "runner": "-m flows.runner",
    "tracker": "multiprocessing.resource_tracker import main",
    "dvc": "-m flows.child ",
    "stage": "-m tasks.STAGE ",
    "torchrun": "torch.distributed.run ",
    "rank": "--config ",
}
"""What stands in the command line of a process of each class; `|` between several, any of which will do."""
_SERVING = ("serve", "server", "runner", "tracker")
"""What outlives a served run. Python gives the runner a tracker of its own with the first run that it spawns; it ends
with the runner."""

_SERVED = {"measure": ("run", "server"), "train 1proc": ("runner",), "train 2proc": ("serve",)}
_CANCELLED_IN = ("measure", "train 1proc")
_STOPPED = (
    ("fingerprint", "dvc"), ("download", "stage"), ("slice", "flow"), ("measure", "server"), ("measure", "rank"),
    ("train 1proc", "torchrun"), ("train 1proc", "stage"), ("train 2proc", "rank"), ("train 2proc", "dvc"),
    ("evaluate", "flow"), ("report", "stage"),
)  # fmt: skip
_SECONDS_STOPPED = 3.0
_SECONDS_TO_BE_GONE = 60.0
"""After a kill; 15, served 40, of them are those in which a training may save, and without a server the flow asks
for it several times."""
_SECONDS_TO_APPEAR = 300.0
_MOST_SECONDS_INTO_STAGE = 6.0


@dataclass(frozen=True)
class Kill:
    """One process to be killed, at a random moment of one stage; or another trouble for it."""

    stage: str
    kind: str
    is_served: bool = False
    how: Literal["kill", "cancel", "stop"] = "kill"
    """cancel: of a run, by whoever serves it. stop: for a moment, as a machine does that is put to sleep."""


def all_kills() -> list[Kill]:
    """Return 57 kills, two of them runs that are cancelled, in the order of the stages.

    A comparison outlives its server, so that it is the last of its stage.
    """
    kills = []
    for stage in STAGES:
        ranks = ["torchrun", "rank"] if stage in _RANKS_IN else []
        kinds = ["dvc", "stage", *ranks, "flow", "make" if len(kills) % 2 else "shell"]
        kills += [Kill(stage, kind) for kind in kinds]
        kills += [Kill(stage, "run", is_served=True, how="cancel")] if stage in _CANCELLED_IN else []
        kills += [Kill(stage, kind, is_served=True) for kind in _SERVED.get(stage, ())]
        kills.append(Kill(stage, "server"))
    return kills


def all_stops() -> list[Kill]:
    """Return a moment's stop for every class of process, spread over the stages of one comparison."""
    return [Kill(stage, kind, how="stop") for stage, kind in _STOPPED]


class Comparison:
    """A workspace in which a comparison is started again and again, until it has come to its end."""

    def __init__(
        self,
        root: Path,
        *,
        clean: Workspace | None = None,
        changes: Mapping[str, Any] | None = None,
        programs: Path | None = None,
    ) -> None:
        """`clean`: a finished comparison of the same trainings, if there is one, to begin from; `changes`: of its
        params.yaml; `programs`: the folder `bin` for the last run, which nobody kills."""
        self._choose = random.Random(0)
        self._programs = programs
        root.mkdir(parents=True, exist_ok=True)
        self.workspace = _make_workspace(root / "blank", changes or {}, clean)
        if clean is None:
            clean = self.workspace.copy(root / "clean")
            clean.run("make", "-o", ".venv/.ready", "compare")
        self._clean = clean
        self.mark = new_mark()
        """What tells its processes from all others."""
        self._log = root / "output.log"
        self._started: subprocess.Popen[bytes] | None = None

    def trial(self, kill: Kill) -> Trial:
        """Bring the comparison to the stage, kill, and see who is left and for how long."""
        pid = self._reach(kill)
        if pid is None:
            return Trial(problem=f"{kill}: no such process was seen; {self._said()}")
        if kill.how == "cancel":
            self._cancel_run()
        else:
            _send(pid, signal.SIGSTOP if kill.how == "stop" else signal.SIGKILL)
        killed_at = time.monotonic()
        if kill.how == "stop":
            time.sleep(_SECONDS_STOPPED)
            _send(pid, signal.SIGCONT)
        elif kill.kind == "server" and not kill.is_served:
            time.sleep(2)
        if kill.how == "stop" or (kill.kind == "server" and not kill.is_served):
            goes_on = self._find("flow", kill.stage) is not None or self._has_finished()
            return Trial(problem="" if goes_on else f"{kill}: the comparison did not go on; {self._said()}")
        stays = _SERVING if kill.kind == "run" else ()
        while (left := self._left(but=stays)) and time.monotonic() - killed_at < _SECONDS_TO_BE_GONE:
            time.sleep(0.05)
        seconds = time.monotonic() - killed_at
        self._collect()
        if left:
            self._end_all()
        return Trial(problem=f"{kill}: left after {seconds:.0f} s: {left}" if left else "", seconds_lost=seconds)

    def finish(self) -> list[str]:
        """Let the comparison come to its end; return what is wrong with what it leaves."""
        self._end_all()
        if self._programs is not None:
            (self.workspace.folder / ".venv").unlink()
            (self.workspace.folder / ".venv").symlink_to(self._programs.parent)
        done = self.workspace.run("make", "-o", ".venv/.ready", "compare", ok=False, **self.mark)
        found = [] if done.returncode == 0 else [f"the last run ended with {done.returncode}: {done.stdout[-600:]}"]
        if left := self._left():
            found.append(f"left at the end: {left}")
        folder = self.workspace.folder
        half = [str(path) for path in (folder / "data").rglob("*tmp*")]
        half += [str(path) for path in (folder / ".work").rglob("*.partial")]
        return found + self._unequal() + [f"left behind: {path}" for path in half]

    def _unequal(self) -> list[str]:
        """Return the checkpoints whose weights are not those of the clean run."""
        clean = sorted((self._clean.folder / "data" / "runs").rglob("*-epoch-*.pt"))
        names = [file.relative_to(self._clean.folder) for file in clean]
        there = sorted((self.workspace.folder / "data" / "runs").rglob("*-epoch-*.pt"))
        if [file.relative_to(self.workspace.folder) for file in there] != names or not names:
            return [f"checkpoints {there}, wanted {names}"]
        return [
            f"other weights: {name}"
            for name in names
            if not are_bitwise_equal(torch.load(self.workspace.folder / name), torch.load(self._clean.folder / name))
        ]

    def _reach(self, kill: Kill) -> int | None:
        """Return the process to kill, at a random moment after the stage has begun; None if it never came.

        What goes on by itself, as a comparison does whose server was killed, may have passed the stage: then it starts
        again.
        """
        for _ in range(2):
            if self._find("flow", "") is None:
                self._forget(kill.stage)
            self._start(kill)
            if self._is_there(kill):
                break
            self._end_all()
        else:
            return None
        # What is stopped goes on, and would be past the next stop's stage.
        most = 0.5 if kill.stage == "fingerprint" or kill.how == "stop" else _MOST_SECONDS_INTO_STAGE
        time.sleep(self._choose.choice([0.0, 0.3, 1.0]) * self._choose.uniform(0, most))
        # One that has ended meanwhile has had its stage's successor take its place.
        return self._find(kill.kind, kill.stage) or self._find(kill.kind, "") or self._find("flow", kill.stage)

    def _is_there(self, kill: Kill) -> bool:
        """Wait until the stage runs with a process of the kind; return False if it never does."""
        deadline = time.monotonic() + _SECONDS_TO_APPEAR
        while self._find("stage", kill.stage) is None or self._find(kill.kind, kill.stage) is None:
            if time.monotonic() > deadline or self._has_finished():
                return False
            time.sleep(0.02)
        return True

    def _end_all(self) -> None:
        """Ask whatever is left to end, and wait for it."""
        for pid in self._left():
            _send(pid, signal.SIGTERM)
        deadline = time.monotonic() + _SECONDS_TO_BE_GONE
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._collect()

    def _start(self, kill: Kill) -> None:
        if kill.is_served:
            if self._find("serve", "") is None:
                self._spawn("python -m flows.serve")
                _wait_for(lambda: "serving ddp-" in self._said(), seconds=90)
            self.workspace.run("prefect", "deployment", "run", "ddp-compare")
        elif self._find("flow", "") is None:
            self._spawn(_WORDS["shell"])

    def _cancel_run(self) -> None:
        api = Api.of_served(self.workspace.folder)
        for run in api.ask("flow_runs/filter", flow_runs={"state": {"type": {"any_": ["RUNNING"]}}}):
            api.ask(f"flow_runs/{run['id']}/set_state", state={"type": "CANCELLING"})

    def _spawn(self, typed: str) -> None:
        with self._log.open("wb") as log:
            self._started = subprocess.Popen(
                ["bash", "-c", typed], cwd=self.workspace.folder, env=self.workspace.environment(**self.mark),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _forget(self, stage: str) -> None:
        """Make a stage that is finished run again: its line in dvc.lock, what it keeps, and the cache of runs."""
        name = stage.replace(" ", "@")
        # Read and written as DVC does: mappings in one line are not read again by every parser.
        file, yaml = self.workspace.folder / "dvc.lock", YAML()
        lock = yaml.load(file) if file.exists() else {"stages": {}}
        shutil.rmtree(self.workspace.folder / ".dvc" / "cache" / "runs", ignore_errors=True)
        if lock["stages"].pop(name, None) is None:
            return
        yaml.dump(lock, file)
        kept = {"measure": "measure", "slice": "slices", "evaluate": "evaluation", "download": "download"}
        kept |= {f"train {cell}": f"runs/{cell}" for cell in CELLS}
        if stage in kept:
            shutil.rmtree(self.workspace.folder / ".work" / kept[stage], ignore_errors=True)

    def _find(self, kind: str, stage: str) -> int | None:
        words = _WORDS[kind].replace("STAGE", stage).split("|")
        not_it = _WORDS["torchrun"] if kind == "rank" else "\n"  # which is told what its ranks are told
        left = left_of(self.mark).items()
        return min(
            (pid for pid, said in left if any(word in said for word in words) and not_it not in said), default=None
        )

    def _left(self, but: tuple[str, ...] = ()) -> dict[int, str]:
        words = [_WORDS[kind] for kind in but]
        return {pid: said for pid, said in left_of(self.mark).items() if not any(word in said for word in words)}

    def _collect(self) -> None:
        if self._started is not None and not self._left():
            self._started.wait()

    def _has_finished(self) -> bool:
        return self._started is not None and self._started.poll() is not None

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-1500:] if self._log.exists() else ""


def comparison_trials(root: Path, kills: Sequence[Kill], **of: Any) -> Iterator[Trial]:
    """Yield a trial for each kill; `of`: what else Comparison is told.

    What is wrong with the finished comparison is wrong with all of them.
    """
    comparison = Comparison(root, **of)
    with none_left_of(comparison.mark):
        trials = [comparison.trial(kill) for kill in kills]
        words = "; ".join(comparison.finish())
    for trial in trials:
        yield Trial(problem="; ".join(filter(None, [trial.problem, words])), seconds_lost=trial.seconds_lost)


def _make_workspace(folder: Path, changes: Mapping[str, Any], finished: Workspace | None) -> Workspace:
    changes = {"train.checkpoint_every_steps": 2, **changes}
    if finished is None:
        workspace = Workspace.create(folder, project=PROJECT, changes={**SMALL, **changes})
    else:
        workspace = finished.copy(folder)
        workspace.change(changes)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy2(PROJECT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    settings = folder / "prefect.toml"
    settings.write_text(settings.read_text().replace("4200", str(free_port())))
    return workspace


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, number)


def _wait_for(is_so: Callable[[], object], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
