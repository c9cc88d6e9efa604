"""A comparison without a defect, and exhibits beside it."""

import json
import shutil
from typing import Any, NamedTuple

from tasks.reporting.results import Results
from tests.museum.project import CELLS, Size, change_params, copy_project, list_arguments, make_project, patch_project
from tests.museum.stage_process import StageFailedError, run_elsewhere, run_stages

ABOUT_SECONDS = {
    "Not data-bound",
    "Only steps were timed",
    "Speedup is plausible",
    "Training bears out the blocks",
    "Baseline is not slowed",
}
"""Gates that judge measured times, not what was done in them."""
_CHANGE_EVALUATION = {"training.data.batches", "tasks.evaluate"}
ABOUT_DEVICES = "Every rank has a device of its own"
MEASURE = {"speed": True, "waterfall_seconds": 0, "others_share": 1, "advice": False, "memory": False}
"""As few rounds as an interval needs."""
NUM_ATTEMPTS = 4
"""Of a comparison without a defect whose times were disturbed: it trains for less than a second."""


class Outcome(NamedTuple):
    """What became of a comparison."""

    refusal: StageFailedError | None
    """How a stage ended before the gates were asked; None if all stages ran."""
    results: dict[str, Any]
    """results.json; {} after a refusal."""

    @property
    def verdicts(self):
        """What each gate says; {} after a refusal."""
        return {gate["name"]: gate["outcome"] for gate in self.results.get("gates", [])}

    @property
    def failed_gates(self):
        """The gates that failed."""
        return [name for name, verdict in self.verdicts.items() if verdict == "failed"]

    @property
    def says(self):
        """What is said instead of a speedup: the stage's last line, or gates and verdict."""
        return self.refusal.words if self.refusal else f"{self.failed_gates}: {self.results['verdict']}"

    @property
    def is_only_noisy(self):
        """Whether nothing but gates about seconds failed, which a machine busy with something else can bring about."""
        return bool(self.failed_gates) and set(self.failed_gates) <= ABOUT_SECONDS

    def is_caught_by(self, expected):
        """Return True if the gate of this name failed, or the stage `STAGE: WORDS` refused with these words."""
        stage, _, words = expected.partition(": ")
        if words:
            return self.refusal is not None and self.refusal.stage == stage and words in self.refusal.words
        return expected in self.failed_gates


class Museum:
    """Scratch projects below one folder; the defect-free comparison is made first and shared."""

    def __init__(self, root, checkout, *, is_timed):
        """`is_timed`: whether anybody asks for its seconds; else what blocks did is told by short ones."""
        self._root, self._num_attempts = root, NUM_ATTEMPTS if is_timed else 1
        seconds = (
            {"block_seconds": 0.12, "max_seconds": 4.0} if is_timed else {"block_seconds": 0.04, "max_seconds": 0.1}
        )
        self._measure = {f"measure.{name}": value for name, value in (MEASURE | seconds).items()}
        self._blank = root / "blank"
        run_elsewhere(make_project, self._blank, checkout, Size())
        # Of ten steps; each that is looked at takes longer than all of them.
        change_params(self._blank, {"verify.updates": 4})
        for attempt in range(self._num_attempts):
            self.clean_project = copy_project(self._blank, root / f"clean-{attempt}")
            self.clean = compare(self.clean_project)
            if not self.clean.is_only_noisy:
                break

    def show_timed(self, *exhibits):
        """Measure the speed of the cells that were trained without a defect, with the exhibits' defects in that."""
        for attempt in range(self._num_attempts):
            project = copy_project(self.clean_project, self._root / f"timed-{_name(exhibits)}-{attempt}")
            change_params(project, self._measure)
            _patch(project, exhibits)
            outcome = compare(project, ())
            if exhibits or not outcome.is_only_noisy:
                break
        return outcome

    def show(self, *exhibits):
        """Run a comparison with the defects of these exhibits, which are run alike, in it."""
        (scenario,) = {exhibit.scenario for exhibit in exhibits}
        if scenario == "timed":
            return self.show_timed(*exhibits)
        spares_baseline = all(exhibit.spares_baseline for exhibit in exhibits)
        project = copy_project(
            self.clean_project if scenario == "resume" else self._blank, self._root / _name(exhibits)
        )
        if scenario == "resume":
            # 2proc is as it was when it had trained all ranges but the last.
            runs, segments = project / "data/runs/2proc", project / ".work/runs/2proc/segments"
            run = json.loads((runs / "run.json").read_bytes())
            shutil.rmtree(segments / run["segments"][-1]["fingerprint"])
            shutil.rmtree(runs)
        else:
            shared = ["data/measurements"] + ["data/runs/1proc"] * spares_baseline
            # What was found of the same weights would be taken for what is found of them with the defect.
            if not {part.module for exhibit in exhibits for part in exhibit.patches} & _CHANGE_EVALUATION:
                shared.append(".work/evaluation")
            for name in shared:
                shutil.copytree(self.clean_project / name, project / name)
        change_params(project, {key: value for exhibit in exhibits for key, value in exhibit.params})
        _patch(project, exhibits)
        return compare(project, CELLS[1:] if spares_baseline else CELLS, measures=False)


def _patch(project, exhibits):
    patch_project(project, *(f"tests.museum.exhibits:{exhibit.key}" for exhibit in exhibits))


def _name(exhibits):
    return "-".join("".join(filter(str.isalnum, exhibit.key)) for exhibit in exhibits)[:100]


def compare(project, cells=CELLS, *, measures=True):
    """Measure, train these cells, evaluate, check the gates."""
    stages = [("measure", "")] * measures + [*(("train", cell) for cell in cells), ("evaluate", ""), ("report", "")]
    try:
        run_stages(project, [(stage, list_arguments(project, stage, cell)) for stage, cell in stages])
    except StageFailedError as refusal:
        return Outcome(refusal, {})
    results = json.loads((project / "reports" / "results.json").read_bytes())
    Results.model_validate(results)
    return Outcome(None, results)
