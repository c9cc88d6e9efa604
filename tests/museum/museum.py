"""A comparison without a defect, and every exhibit beside it."""

import dataclasses
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.process.lock import is_taken, make_lock_name
from tasks.reporting.results import Results
from tests.museum.exhibit import Exhibit
from tests.museum.project import CELLS, Size, change_params, copy_project, make_project, run_comparison, start_training
from tests.museum.stage_process import StageFailedError, run_elsewhere
from tests.workspace import SMALL, Workspace

ABOUT_SECONDS = {
    "Not data-bound",
    "Only steps were timed",
    "Speedup is plausible",
    "Training bears out the blocks",
}
"""Gates that judge measured times, not what was done in them."""
_MEASURE = {
    "speed": True,
    "waterfall_seconds": 0,
    "others_share": 1,
    "advice": False,
    "memory": False,
}
"""Of the exhibits that are timed: as few rounds as an interval needs."""
_BLOCK_SECONDS = 0.12
"""For blocks of several steps, in which a machine's noise averages out."""
_SPEED_SECONDS = 4.0
"""For an interval of the speedup."""
NUM_ATTEMPTS = 4
"""Of a comparison without a defect whose times were disturbed: it trains for less than a second."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a comparison."""

    refusal: StageFailedError | None
    """How a stage ended before the gates were asked; None if all stages ran."""
    results: dict[str, Any] | None
    """results.json; None after a refusal."""
    error: str | None = None
    """The name of the error that the ranks ended with."""
    naive_speedup: float | None
    """Seconds of the one-process cell / seconds of the other, as logged; None if nothing was logged."""

    @property
    def failed_gates(self) -> list[str]:
        """The gates that failed."""
        if self.results is None:
            return []
        return [gate["name"] for gate in self.results["gates"] if gate["verdict"] == "failed"]

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

    def left_open(self, gate: str) -> bool:
        """Whether all stages ran and the gate of this name could not tell."""
        gates = [] if self.results is None else self.results["gates"]
        return any(one["name"] == gate and one["verdict"] == "not checked" for one in gates)

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
        certifies_all: bool = False,
        num_attempts: int = NUM_ATTEMPTS,
        block_seconds: float = _BLOCK_SECONDS,
        speed_seconds: float = _SPEED_SECONDS,
        twins_have_defects: bool = True,
    ) -> None:
        self._root = root
        self._certifies_all = certifies_all
        """Whether the certificate is made with every defect, as it would be in a comparison."""
        self._timing = {"measure.block_seconds": block_seconds, "measure.max_seconds": speed_seconds}
        """Of the exhibits that are timed; three starts of every cell are made in however few seconds."""
        self._twins_have_defects = twins_have_defects
        """Whether the certificate is made with twins beside it; False where nobody asks for what they say."""
        self._num_attempts = num_attempts
        """Of a comparison without a defect whose times were disturbed; 1 where nobody asks for its times."""
        self.blank = root / "blank"
        """What stands before the training."""
        self._checkout, self._size = checkout, size or Size()
        run_elsewhere(make_project, self.blank, checkout, self._size)
        self._clean, self.clean = self._compare_without_defect()
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
            project = copy_project(self._clean, self._root / folder)
            measure = {f"measure.{name}": value for name, value in _MEASURE.items()}
            change_params(project, {**measure, **self._timing})
            for mutation in [] if exhibit is None else exhibit.mutations:
                mutation.apply(project)
            outcome = compare(project, ())
            if exhibit is not None or not outcome.is_only_noisy:
                break
        return outcome

    def show(self, exhibit: Exhibit) -> Outcome:
        """Run the comparison with the defect in it."""
        if exhibit.is_timed:
            return self.show_timed(exhibit)
        folder = self._root / _plain(exhibit.key)
        if exhibit.scenario == "search":
            return run_search(folder, self._checkout, exhibit)
        blank = self._blank_with_dropout if exhibit.has_dropout else self.blank
        project = copy_project(self._clean if exhibit.scenario.startswith("resume") else blank, folder)
        if exhibit.scenario.startswith("resume"):
            self._forget_last_range(project, CELLS if exhibit.scenario == "resume both" else CELLS[1:])
        elif not exhibit.has_dropout:
            self._share(project, exhibit)
        change_params(project, {**dict(exhibit.params), "cells.2proc.launcher": exhibit.launcher})
        if self._is_certified(exhibit) and not self._twins_have_defects:
            change_params(project, {"measure.twin_seconds": 0})
        for mutation in exhibit.mutations:
            mutation.apply(project)
        cells = CELLS[1:] if exhibit.spares_baseline else CELLS
        if exhibit.scenario == "two jobs":
            return run_two_jobs(project, cells)
        return compare(project, cells, measures=self._is_certified(exhibit))

    @cached_property
    def _blank_with_dropout(self) -> Path:
        folder = self._root / "blank-dropout"
        run_elsewhere(make_project, folder, self._checkout, dataclasses.replace(self._size, dropout=0.2))
        return folder

    def _is_certified(self, exhibit: Exhibit) -> bool:
        return exhibit.is_certified or (self._certifies_all and not exhibit.scenario.startswith("resume"))

    def _share(self, project: Path, exhibit: Exhibit) -> None:
        """Give the project what the clean comparison made and the defect does not touch."""
        shared = [] if self._is_certified(exhibit) else ["data/measurements"]
        shared += ["data/runs/1proc"] if exhibit.spares_baseline else []
        # Models are evaluated with training/data/batches.py: what was found of the same weights holds no more.
        if all(mutation.file != "training/data/batches.py" for mutation in exhibit.mutations):
            shared.append(".work/evaluation")
        for name in shared:
            shutil.copytree(self._clean / name, project / name)

    def _forget_last_range(self, project: Path, cells: tuple[str, ...]) -> None:
        """Leave the cells as they were when they had trained all ranges but the last."""
        for cell in cells:
            run = json.loads((project / "data" / "runs" / cell / "run.json").read_bytes())
            shutil.rmtree(project / ".work" / "runs" / cell / "segments" / run["segments"][-1]["fingerprint"])
            shutil.rmtree(project / "data" / "runs" / cell)


def _plain(key: str) -> str:
    return "".join(part if part.isalnum() else "-" for part in key)


def compare(project: Path, cells: tuple[str, ...] = CELLS, *, measures: bool = True) -> Outcome:
    """Measure, train these cells, evaluate, check the gates."""
    try:
        run_comparison(project, cells, measures=measures)
    except StageFailedError as refusal:
        return Outcome(
            refusal=refusal, results=None, error=_last_error(project), naive_speedup=_speedup_until_now(project)
        )
    results = json.loads((project / "reports" / "results.json").read_bytes())
    Results.model_validate(results)
    seconds = {cell["cell"]: cell["whole"]["train_seconds"] for cell in results["cells"]}
    return Outcome(refusal=None, results=results, naive_speedup=seconds["1proc"] / seconds["2proc"])


def run_two_jobs(project: Path, cells: tuple[str, ...]) -> Outcome:
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
        return Outcome(refusal=refusal, results=None, naive_speedup=None)
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.finish()
    return compare(project, (), measures=False)


def run_search(folder: Path, checkout: Path, exhibit: Exhibit) -> Outcome:
    """Run `make search` on built-in data with the exhibit's defect in it."""
    changes = {"ranges": ["0-64"], "tracking.kind": "none", **dict(exhibit.params)}
    workspace = Workspace.create(folder, project=checkout, changes=SMALL | changes)
    for mutation in exhibit.mutations:
        mutation.apply(folder)
    done = workspace.run("python", "-m", "flows.search", ok=False)
    refusal = StageFailedError("search", done.returncode, done.stdout.splitlines()[-1]) if done.returncode else None
    return Outcome(refusal=refusal, results=None, naive_speedup=None)


def _speedup_until_now(project: Path) -> float | None:
    """Return the ratio of the seconds of the steps that both cells have logged; None without such a step."""
    seconds = {cell: _logged_seconds(project, cell) for cell in CELLS}
    both = seconds["1proc"].keys() & seconds["2proc"].keys()
    if not both:
        return None
    return sum(seconds["1proc"][step] for step in both) / sum(seconds["2proc"][step] for step in both)


def _last_error(project: Path) -> str | None:
    """Return the name of the error with which the several-rank cell ended."""
    events = _lines(project / ".work" / "runs" / CELLS[1] / "steps.jsonl")
    error: str | None = events[-1].get("error") if events else None
    return error


def _logged_seconds(project: Path, cell: str) -> dict[int, float]:
    """Return the seconds of every step in the cell's finished segments and in the stream of its last launch."""
    files = [
        *(project / "data" / "runs" / cell).glob("segments/*/steps.jsonl"),
        project / ".work" / "runs" / cell / "steps.jsonl",
    ]
    return {line["step"]: line["seconds"] for file in files for line in _lines(file) if line["event"] == "step"}


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
