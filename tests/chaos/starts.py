"""The same training, started several times at once in one workspace."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.trial import Trial
from tests.conftest import PROJECT
from tests.museum.project import CELLS, Size, copy_project, make_project, start_training
from tests.museum.stage_process import StageFailedError, run_elsewhere
from training.state.receipt import find_problem

_NUM_STARTS = 4
_SIZE = Size(num_rows=(1200, 40))
"""Many seconds of training: the winner still runs when the last of the others comes, on a busy machine too."""
_REFUSED = 4


def start_trials(root: Path, *, num_trials: int) -> Iterator[Trial]:
    """Start the stage `train` of one cell several times at once: exactly one trains, the others are refused."""
    blank = root / "blank"
    run_elsewhere(make_project, blank, PROJECT, _SIZE)
    for number in range(num_trials):
        project = copy_project(blank, root / str(number))
        words = _words_of_starts(project)
        winners = [index for index, said in enumerate(words) if said == ""]
        problem = f"{len(winners)} of {_NUM_STARTS} trained: {words}" if len(winners) != 1 else _problem(project)
        yield Trial(problem=problem)
        if not problem:
            shutil.rmtree(project)
    shutil.rmtree(root)


def _words_of_starts(project: Path) -> list[str]:
    """Return what each start said at its end: nothing if it trained; AssertionError if one failed otherwise."""
    stages = [start_training(project, CELLS[1], log=f"{number}.log") for number in range(_NUM_STARTS)]
    words = []
    for number, stage in enumerate(stages):
        said = ""
        try:
            stage.finish()
        except StageFailedError as error:
            said = f"{error.words} ({error.exit_code})"
        log = (project / f"{number}.log").read_text()
        has_trained = not said and "0 of 2 segments are finished already" in log
        is_refused = "another comparison is training" in said and said.endswith(f"({_REFUSED})")
        assert has_trained or is_refused, f"{said}\n{log}"
        words.append(said)
    return words


def _problem(project: Path) -> str:
    """Return what is wrong with what the winner left."""
    run = json.loads((project / "data" / "runs" / CELLS[1] / "run.json").read_bytes())
    segments = project / ".work" / "runs" / CELLS[1] / "segments"
    found = [find_problem(segments / part["fingerprint"], fingerprint=part["fingerprint"]) for part in run["segments"]]
    return "; ".join(problem for problem in found if problem is not None)
