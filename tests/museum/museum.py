"""A comparison without a defect, and every exhibit beside it."""

import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.params import MeasureParams
from tasks.process.lock import is_taken, make_lock_name
from tasks.reporting.results import Results
from tests.museum.exhibit import Exhibit
from tests.museum.project import (
    CELLS,
    Size,
    change_params,
    copy_project,
    make_project,
    patch_project,
    run_comparison,
    start_training,
)
from tests.museum.stage_process import StageFailedError, run_elsewhere
from tests.mutants.patching import make_environment
from tests.workspace import SMALL, Workspace

ABOUT_SECONDS = {
    "Not data-bound",
    "Only steps were timed",
    "Speedup is plausible",
    "Training bears out the blocks",
    "Baseline is not slowed",
}
"""Gates that judge measured times, not what was done in them."""
_MEASURE = {
    "measure.speed": True,
    "measure.waterfall_seconds": 0,
    "measure.others_share": 1,
    "measure.advice": False,
    "measure.memory": False,
}
"""Of the exhibits that are timed: as few rounds as an interval needs."""
_BLOCK_SECONDS = 0.12
"""For blocks of several steps, in which a machine's noise averages out."""
_SPEED_SECONDS = 4.0
"""For an interval of the speedup."""
NUM_ATTEMPTS = 4
"""Of a comparison without a defect whose times were disturbed: it trains for less than a second."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a comparison."""

    refusal: StageFailedError | None
    """How a stage ended before the gates were asked; None if all stages ran."""
    results: dict[str, Any] | None
    """results.json; None after a refusal."""

    @property
    def verdicts(self) -> dict[str, str]:
        """What each gate says; {} after a refusal."""
        return {} if self.results is None else {gate["name"]: gate["verdict"] for gate in self.results["gates"]}

    @property
    def failed_gates(self) -> list[str]:
        """The gates that failed."""
        return [name for name, verdict in self.verdicts.items() if verdict == "failed"]

    @property
    def is_caught(self) -> bool:
        """Whether a stage refused or a gate failed."""
        return self.refusal is not None or bool(self.failed_gates)

    @property
    def says(self) -> str:
        """What is said instead of a speedup: the verdict, or the stage's last line."""
        if self.refusal is not None:
            return self.refusal.words
        return "nothing" if self.results is None else str(self.results["verdict"])

    @property
    def is_only_noisy(self) -> bool:
        """Whether nothing but gates about seconds failed, which a machine busy with something else can bring about."""
        return self.is_caught and self.refusal is None and set(self.failed_gates) <= ABOUT_SECONDS

    def is_caught_by(self, expected: str) -> bool:
        """Return True if the gate of this name failed, or the stage `STAGE: WORDS` refused with these words."""
        stage, _, words = expected.partition(": ")
        if words:
            return self.refusal is not None and self.refusal.stage == stage and words in self.refusal.words
        return expected in self.failed_gates


class Museum:
    """Scratch projects below one folder; the defect-free comparison is made first and shared."""

    def __init__(
        self,
        root: Path,
        checkout: Path,
        *,
        size: Size | None = None,
        num_attempts: int = NUM_ATTEMPTS,
        block_seconds: float = _BLOCK_SECONDS,
        speed_seconds: float = _SPEED_SECONDS,
    ) -> None:
        self._root = root
        self._timing = {
            "measure.block_seconds": block_seconds,
            "measure.max_seconds": speed_seconds,
            "measure.burn_in_seconds": min(speed_seconds, MeasureParams().burn_in_seconds),
        }
        """Of the exhibits that are timed; three starts of every cell are made in however few seconds."""
        self._num_attempts = num_attempts
        """Of a comparison without a defect whose times were disturbed; 1 where nobody asks for its times."""
        self.blank = root / "blank"
        """What stands before the training."""
        self._checkout, self._size = checkout, size or Size()
        run_elsewhere(make_project, self.blank, checkout, self._size)
        self.clean_project, self.clean = self._compare_without_defect()
        """The comparison without a defect, and what became of it."""

    def _compare_without_defect(self) -> tuple[Path, Outcome]:
        for attempt in range(self._num_attempts):
            project = copy_project(self.blank, self._root / f"clean-{attempt}")
            outcome = compare(project)
            if not outcome.is_only_noisy:
                break
        return project, outcome

    def show_timed(self, exhibit: Exhibit | None = None) -> Outcome:
        """Measure the speed of the cells that were trained without a defect, with the exhibit's defect in that."""
        for attempt in range(self._num_attempts):
            folder = f"timed-{'' if exhibit is None else _plain(exhibit.key)}-{attempt}"
            project = copy_project(self.clean_project, self._root / folder)
            change_params(project, {**_MEASURE, **self._timing})
            _patch(project, exhibit)
            outcome = compare(project, ())
            if exhibit is not None or not outcome.is_only_noisy:
                break
        return outcome

    @property
    def first_steps(self) -> list[int]:
        """From where a defect is shown: step 1, after the first checks, from the middle, in the last tenth."""
        number = sum(-(-rows // 8) for rows in self._size.num_rows)
        return [1, 3, number // 2 + 1, number + 1 - max(number // 10, 1)]

    def show(self, exhibit: Exhibit, first: int = 1) -> Outcome:
        """Run the comparison with the defect in it, from this step on."""
        if exhibit.is_timed:
            return self.show_timed(exhibit)
        folder = self._root / f"{_plain(exhibit.key)}-{first}"
        if exhibit.scenario == "search":
            return run_search(folder, self._checkout, exhibit)
        is_resumed = exhibit.scenario.startswith("resume")
        blank = self._blank_with_dropout if exhibit.has_dropout else self.blank
        project = copy_project(self.clean_project if is_resumed else blank, folder)
        if is_resumed:
            self._forget_last_range(project, CELLS if exhibit.scenario == "resume both" else CELLS[1:])
        elif not exhibit.has_dropout:
            self._share(project, exhibit)
        change_params(project, {**dict(exhibit.params), "cells.2proc.launcher": exhibit.launcher})
        _patch(project, exhibit, first)
        cells = CELLS[1:] if exhibit.spares_baseline else CELLS
        if exhibit.scenario == "two jobs":
            return run_two_jobs(project, cells)
        return compare(project, cells, measures=exhibit.has_dropout)

    @cached_property
    def _blank_with_dropout(self) -> Path:
        folder = self._root / "blank-dropout"
        run_elsewhere(make_project, folder, self._checkout, dataclasses.replace(self._size, dropout=0.2))
        return folder

    def _share(self, project: Path, exhibit: Exhibit) -> None:
        """Give the project what the clean comparison made and the defect does not touch."""
        shared = ["data/measurements"]
        shared += ["data/runs/1proc"] if exhibit.spares_baseline else []
        # What was found of the same weights would be taken for what is found of them with the defect.
        if not {part.module for part in exhibit.patches} & {"training.data.batches", "tasks.evaluate"}:
            shared.append(".work/evaluation")
        for name in shared:
            shutil.copytree(self.clean_project / name, project / name)

    def _forget_last_range(self, project: Path, cells: Sequence[str]) -> None:
        """Leave the cells as they were when they had trained all ranges but the last."""
        for cell in cells:
            run = json.loads((project / "data" / "runs" / cell / "run.json").read_bytes())
            shutil.rmtree(project / ".work" / "runs" / cell / "segments" / run["segments"][-1]["fingerprint"])
            shutil.rmtree(project / "data" / "runs" / cell)


def name_patches(exhibit: Exhibit, first: int = 1) -> str:
    """Return the exhibit's patches as a process is told of them; `first`: the step from which they are wrong."""
    return f"tests.museum.exhibits:{exhibit.key} from step {first}"


def _patch(project: Path, exhibit: Exhibit | None, first: int = 1) -> None:
    if exhibit is not None:
        patch_project(project, name_patches(exhibit, first))


def _plain(key: str) -> str:
    return "".join(part if part.isalnum() else "-" for part in key)


def compare(project: Path, cells: Sequence[str] = CELLS, *, measures: bool = True) -> Outcome:
    """Measure, train these cells, evaluate, check the gates."""
    try:
        run_comparison(project, cells, measures=measures)
    except StageFailedError as refusal:
        return Outcome(refusal=refusal, results=None)
    results = json.loads((project / "reports" / "results.json").read_bytes())
    Results.model_validate(results)
    return Outcome(refusal=None, results=results)


def run_two_jobs(project: Path, cells: Sequence[str]) -> Outcome:
    """Start the training of a cell, and once more while the first one has not ended."""
    (cell,) = cells
    first = start_training(project, cell)
    lock = make_lock_name(str(project))
    deadline = time.monotonic() + 60
    while not is_taken(lock) and time.monotonic() < deadline:
        time.sleep(0.005)
    # It trains for a second only: it is held, so that the second job is sure to come before its end.
    os.kill(first.pid, signal.SIGSTOP)
    try:
        start_training(project, cell, log="second.log").finish()
    except StageFailedError as refusal:
        return Outcome(refusal=refusal, results=None)
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.finish()
    return compare(project, (), measures=False)


def run_search(folder: Path, checkout: Path, exhibit: Exhibit) -> Outcome:
    """Run `make search` on built-in data with the exhibit's defect in it."""
    changes = {"ranges": ["0-64"], "tracking.kind": "none", **dict(exhibit.params)}
    workspace = Workspace.create(folder, project=checkout, changes=SMALL | changes)
    done = workspace.run("python", "-m", "flows.search", ok=False, **make_environment(name_patches(exhibit)))
    refusal = StageFailedError("search", done.returncode, done.stdout.splitlines()[-1]) if done.returncode else None
    return Outcome(refusal=refusal, results=None)
