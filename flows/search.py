"""`python -m flows.search`: successive halving over trials of params.yaml, each a training by the stage `train`.

A trial has a folder that is named by what its content depends on, so that whatever is finished is found again: by a
search that was killed, by one that tries more, and by the comparison that goes on with the best. All of it is decided
by held-out losses after whole rungs, so that nothing depends on which trial ends first. It runs without Prefect, whose
server would start slower than a search that is finished already.
"""

import argparse
import contextlib
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from flows.child import make_environment, run_child
from flows.output import StageOutput
from flows.pipeline import StageFailed, explain_failure, reproduce
from flows.trials import Trial, change_raw_params, find_path, open_slots, read_command, run_trials, write_inputs
from tasks.params import MAX_CELLS, Params, load_params
from tasks.params.choices import read_unit
from tasks.params.editing import make_patch, make_train_changes
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError, DataError, DivergedError, ExitCode, exit_with_one_line
from tasks.process.lock import lock_machine, lock_workspace
from tasks.process.logs import configure_logging
from tasks.process.stopping import STARTER
from tasks.records.evaluation import EvaluationFile
from tasks.records.manifests import BaseModelManifest, MachineFile, RawManifest
from tasks.records.outputs import SegmentOutputs
from tasks.records.run import RunFile, read_segment
from tasks.records.search import RepeatRecord, SearchFile, SpreadRecord, TrialEpoch, TrialRecord
from tasks.reporting.search import describe_search, write_search_report
from tasks.services.tracked import Figures, Report, TrackedComparison, flatten
from tasks.services.tracker import send_trials
from tasks.store.kept import fill_folder, link_folder
from training.process.files import digest_json
from training.step.schedule import compute_learning_rate

_log = logging.getLogger(__name__)

_EVALUATING = Path(".work/search/evaluating")
_RUNS = Path(".work/runs")
_PARAMS = Path("params.yaml")
_LOGS = Path(".work/logs")
_REPORTS = Path("reports")


def rank(losses: dict[int, float]) -> list[int]:
    """Return the trials, number -> held-out loss, from the best to the worst; of equal ones the lower number first."""
    return sorted(losses, key=lambda index: (losses[index], index))


def choose_promoted(losses: dict[int, float], *, eta: int) -> list[int]:
    """Return which trials go on, the best first: one in `eta`, at least one."""
    return rank(losses)[: max(1, len(losses) // eta)]


class Search:
    """One search of the comparison in params.yaml, which may be written to while it runs: it is read here, once."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.text, self.raw = _PARAMS.read_text(encoding="utf-8"), read_strict_yaml(_PARAMS)
        if Params.model_validate(self.raw) != params:
            raise ConfigurationError("params.yaml: changed since the search began; run again")
        self.asked = params.search
        self.cell = params.baseline
        self.trials = [self._plan(f"trial-{index}", index) for index in range(self.asked.trials)]
        num_gpus = MachineFile.read(find_path("train", "machine")).num_gpus
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = visible.split(",") if visible and num_gpus else list(map(str, range(num_gpus)))
        self.slots = open_slots(params.ray.address, at_once=self.asked.at_once)
        self.losses: dict[int, dict[int, float]] = {}
        """Epochs of a rung -> number of a trial -> held-out loss after them."""
        self.problems: dict[str, str] = {}
        """Name of whatever diverged -> why, as it said."""
        self.base_loss = math.nan
        self.runs: dict[str, Path] = {}
        """Name of whatever was trained -> folder of its longest run."""
        self.heldout: dict[str, float] = {}
        """Name of whatever was trained -> its last loss on the held-out rows."""

    def _plan(self, name: str, index: int, *, cell: str = "", **changes: int) -> Trial:
        configuration = self.asked.draw(index)
        changes = {**make_train_changes(self.params, configuration), **changes}
        return Trial.plan(name, configuration, changes, cell=cell or self.cell, given=self.raw)

    def climb(self) -> None:
        """Train and compare rung by rung; if all of one diverge, the next of the rung before go on."""
        going, rungs, level = list(range(len(self.trials))), self.asked.rungs, 0
        while level < len(rungs):
            losses = self.train([self.trials[index] for index in going], rungs[level])
            named = ((index, self.trials[index].name) for index in going)
            of_rung = {index: losses[name] for index, name in named if name in losses}
            self.losses.setdefault(rungs[level], {}).update(of_rung)
            ranked = ", ".join(f"{self.trials[index].name} {of_rung[index]:.4f}" for index in rank(of_rung))
            _log.info("held-out loss after epoch %d: %s", rungs[level], ranked or "none is finite")
            self.track()
            while not (left := self._list_left(rungs[level])):
                if level == 0:
                    raise DivergedError(
                        f"all trials diverged by epoch {max(self.losses)}; allowed: a lower search.learning_rate"
                    )
                level -= 1
            going, level = choose_promoted(left, eta=self.asked.eta), level + 1

    def _list_left(self, epochs: int) -> dict[int, float]:
        """Return the losses after a rung of those that have not diverged since."""
        losses = self.losses[epochs]
        return {index: losses[index] for index in losses if self.trials[index].name not in self.problems}

    @property
    def best(self) -> int:
        """The number of the trial that won."""
        return rank(self.losses[self.asked.rungs[-1]])[0]

    def find_runner_up(self) -> tuple[int | None, int]:
        """Return who came next where the best was last compared with any, None if nobody, and after which epochs."""
        for epochs in reversed(self.asked.rungs):
            for index in rank(self._list_left(epochs)):
                if index != self.best:
                    return index, epochs
        return None, self.asked.rungs[-1]

    def train(self, trials: list[Trial], epochs: int) -> dict[str, float]:
        """Have the trials trained so far; return name -> held-out loss of those that did not diverge."""
        run_trials(trials, epochs, slots=self.slots, devices=self.devices)
        self.problems |= {trial.name: problem for trial in trials if (problem := trial.read_problem(epochs))}
        whole = [trial for trial in trials if trial.name not in self.problems]
        require_comparable(whole, epochs, span=self.asked.rungs[-1])
        losses = self._evaluate(whole, epochs)
        self.runs |= {trial.name: trial.locate_run(epochs) for trial in whole if trial.name in losses}
        self.heldout |= losses
        return losses

    def _evaluate(self, trials: Sequence[Trial], epochs: int) -> dict[str, float]:
        """Return name -> loss on the held-out rows where it is finite, by the stage `evaluate`, which keeps it."""
        losses: dict[str, float] = {}
        for start in range(0, len(trials), MAX_CELLS):
            losses |= self._evaluate_group(trials[start : start + MAX_CELLS], epochs)
        return losses

    def _evaluate_group(self, trials: Sequence[Trial], epochs: int) -> dict[str, float]:
        shutil.rmtree(_EVALUATING, ignore_errors=True)
        for trial in trials:
            link_folder(trial.locate_run(epochs), _EVALUATING / "runs" / trial.name)
        raw = change_raw_params(self.raw, {}, {trial.name: self.cell for trial in trials})
        own = find_path("evaluate", "runs")
        options = write_inputs(_EVALUATING, raw, find_path("evaluate", "inputs"), without=str(own))
        options |= {"runs": _EVALUATING / "runs", "evaluation": _EVALUATING / "found"}
        try:
            _run_stages("evaluate", command=read_command("evaluate", others=options))
        except StageFailed as failure:
            # It names the model first: "evaluate: trial-1: loss on ...".
            whose = re.sub(r"evaluate: ([\w-]+).*", r"\1", str(failure))
            others = [trial for trial in trials if trial.name != whose]
            if failure.exit_code != ExitCode.DIVERGED or len(others) == len(trials):
                raise
            _log.warning("%s: out of the search: %s", whose, failure)
            self.problems[whose] = str(failure)
            return self._evaluate(others, epochs)
        models = EvaluationFile.read(_EVALUATING / "found").models
        self.base_loss = models["base"].loss
        return {trial.name: models[trial.name].loss for trial in trials}

    def repeat(self) -> list[RepeatRecord]:
        """Return best and runner-up trained with other seeds, for as many epochs as they were compared after."""
        runner_up, epochs = self.find_runner_up()
        if runner_up is None:
            return []
        seeds = [self.params.train.seed + number for number in range(1, self.asked.repeats + 1)]
        again = {
            (index, seed): self._plan(f"trial-{index}-seed-{seed}", index, seed=seed)
            for index in (self.best, runner_up)
            for seed in seeds
        }
        losses = self.train(list(again.values()), epochs)
        return [
            RepeatRecord(trial=index, seed=seed, loss=losses.get(trial.name)) for (index, seed), trial in again.items()
        ]

    def spread(self) -> SpreadRecord | str:
        """Return an epoch of the best configuration by the ranks of another cell, or why there is none."""
        cell = next((name for name, spread in self.params.cells.items() if spread.world_size > 1), None)
        if cell is None:
            return "no cell of params.yaml spreads the same training over several ranks"
        batch, spread = self.asked.draw(self.best).batch_size, self.params.cells[cell]
        if spread.num_nodes > 1 or batch % self.params.count_shares(cell):
            return f"{cell} cannot split the best batch, {batch}, on this machine"
        trial = self._plan(f"trial-{self.best}-{cell}", self.best, cell=cell)
        run_trials([trial], 1, slots=self.slots[:1], devices=self.devices)
        if problem := trial.read_problem(1):
            return problem
        self.runs[trial.name] = trial.locate_run(1)
        return SpreadRecord(cell=cell, world_size=spread.world_size, epoch=_list_epochs(trial, 1)[0])

    def make_record(self, repeats: list[RepeatRecord], spread: SpreadRecord | str) -> SearchFile:
        """Return what was found."""
        (runner_up, compared_after), part = self.find_runner_up(), str(self.params.ranges[0])
        model = BaseModelManifest.read(find_path("train", "base-model")).label
        rows = f"{RawManifest.read(find_path('report', 'raw')).label}, rows {part}"
        changes = make_train_changes(self.params, self.asked.draw(self.best))
        trials = []
        for index, trial in enumerate(self.trials):
            losses = {epochs: of_rung[index] for epochs, of_rung in self.losses.items() if index in of_rung}
            epochs = _list_epochs(trial, max(losses)) if losses else []
            drawn, problem = trial.configuration, self.problems.get(trial.name)
            record = TrialRecord(name=trial.name, drawn=drawn, losses=losses, epochs=epochs, problem=problem)
            trials.append(record)
        return SearchFile(
            name=self.params.name,
            about=f"{model}; {rows}; on {'GPUs' if self.devices else 'the CPU'}.",
            heldout=self.params.heldout_title,
            unit=read_unit(self.params.workload),
            asked=self.asked,
            train_seed=self.params.train.seed,
            base_loss=self.base_loss,
            trials=trials,
            best=self.best,
            runner_up=runner_up,
            compared_after=compared_after,
            repeats=repeats,
            spread=spread,
            patch=make_patch(self.text, changes),
        )

    def link_best(self) -> None:
        """Give the comparison what the best trial trained alone, or on a GPU of its own, from its first segment on.

        Seconds of a segment that shared cores or a GPU with another trial are not its own.
        """
        best = self.trials[self.best]
        others, num_ranks = best.read_others(), self.params.cells[self.cell].world_size
        has_gpu = len(self.devices) >= self.asked.at_once * num_ranks
        for part in takewhile(lambda part: has_gpu or others.get(part.fingerprint) == 0, best.segments):
            target = _RUNS / self.cell / "segments" / part.fingerprint
            if not target.exists():
                with fill_folder(target) as new:
                    link_folder(best.folder / "work" / "segments" / part.fingerprint, new)

    def track(self, report: Sequence[Path] = ()) -> None:
        """Send all that was trained to the trackers, below one run, and at the end the files of the report."""
        content = self.params.model_dump(mode="json", exclude={"tracking", "upload", "description"})
        search = TrackedComparison(
            experiment=self.params.tracking.experiment,
            name=f"{self.params.name}-search",
            description=f"A search of {len(self.trials)} trials. {self.params.description}",
            digest=digest_json([content["search"], [trial.segments[-1].fingerprint for trial in self.trials]]),
            facts=flatten(content),
        )
        figures: Figures = {None: {}}
        figures |= {name: {"final/heldout_loss": loss} for name, loss in self.heldout.items()}
        files = {str(file.relative_to(_REPORTS)): file for file in report}
        final = Report(files=files, figures=figures, tags={None: {}})
        send_trials(self.params, search, self.runs, final if report else None)


def _list_epochs(trial: Trial, epochs: int) -> list[TrialEpoch]:
    others, parts = trial.read_others(), [part.facts for part in read_epochs(trial, epochs)]
    return [
        TrialEpoch(num_tokens=its.num_tokens, train_seconds=its.train_seconds, num_others=others.get(its.fingerprint))
        for its in parts
    ]


def _run_stages(*stages: str, command: list[str] | None = None) -> None:
    """Bring stages up to date by DVC, or run a `command` in their place; raises StageFailed for one that fails."""
    output = StageOutput(_LOGS / f"search-{stages[-1]}.log", send=lambda _: None)
    with contextlib.closing(output):
        if command is None:
            code = reproduce(*stages, environment={}, on_output=output.write)
        else:
            environment = {**make_environment(sys.executable), STARTER: str(os.getpid())}
            code = run_child(command, env=environment, on_output=output.write)
    if code:
        lines = [*output.last_lines]
        message = lines[-1] if lines else f"{stages[-1]} ended with {code}"
        raise StageFailed(*(explain_failure(lines, code) if command is None else (message, code)))


def _main() -> None:
    argparse.ArgumentParser(prog="flows.search", description="Search the parameters of params.yaml.").parse_args()
    configure_logging()
    params = load_params()
    if unfit := params.explain_unsearchable():
        raise ConfigurationError(f"params.yaml: {unfit}")
    with lock_workspace("make search"):
        _run_stages("fingerprint", "download", "slice")
        with lock_machine("make search"):
            search = Search(params)
            search.climb()
            repeats = search.repeat()
            record = search.make_record(repeats, search.spread())
            search.link_best()
        search.track(write_search_report(record, _REPORTS))
    best, lead, _ = describe_search(record)
    sys.stdout.write(f"{best}\n{lead}\nReport: {_REPORTS / 'search.html'}\n")


def read_epochs(trial: Trial, epochs: int) -> list[SegmentOutputs]:
    """Return what the ranks left of each epoch of the trial's run up to so many."""
    folder = trial.locate_run(epochs)
    places = [folder / part.folder for part in RunFile.read(folder).segments]
    return [SegmentOutputs(place, read_segment(place)) for place in places]


def require_comparable(trials: Sequence[Trial], epochs: int, *, span: int) -> None:
    """Raise DataError unless all learned from as many tokens in `epochs` by one schedule over `span` epochs each."""
    tokens = {}
    for trial in trials:
        parts = read_epochs(trial, epochs)
        tokens[trial.name] = sum(part.facts.num_tokens for part in parts)
        for part in parts:
            num_steps = span * part.facts.num_steps
            train, steps = trial.params.train, part.read_steps()
            for step, rate in zip(steps.step.tolist(), steps.learning_rate.tolist(), strict=True):
                wanted = compute_learning_rate(
                    step, num_steps, peak=train.learning_rate, schedule=train.schedule, warmup_steps=train.warmup_steps,
                    floor=train.schedule_floor, decay_steps=train.decay_steps,
                )  # fmt: skip
                if not math.isclose(rate, wanted, rel_tol=1e-9, abs_tol=1e-15):
                    raise DataError(
                        f"{trial.name}: learning rate {rate:.3g} in step {step}, by one schedule over {num_steps} "
                        f"steps {wanted:.3g}; allowed: that schedule from the first step of a trial to its last"
                    )
    if len(set(tokens.values())) > 1:
        low, high = min(tokens, key=lambda name: tokens[name]), max(tokens, key=lambda name: tokens[name])
        raise DataError(
            f"{low} learned from {tokens[low]:,} tokens and {high} from {tokens[high]:,}; allowed: as many in all "
            "trials that are compared"
        )


if __name__ == "__main__":
    exit_with_one_line(_main, name="search")
