"""`python -m flows.search`: successive halving over trials of params.yaml, each a training by the stage `train`.

A trial has a folder that is named by what its content depends on, so that whatever is finished is found again: by a
search that was killed, by one that tries more, and by the comparison that goes on with the best. All of it is decided
by held-out losses after whole rungs, so that nothing depends on which trial ends first. It runs without Prefect, whose
server would start slower than a search that is finished already.
"""

import argparse
import logging
import math
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from flows.child import make_environment, run_child
from flows.fair_trials import read_epochs, require_comparable
from flows.output import StageOutput
from flows.pipeline import reproduce
from flows.trials import StageCommand, Trial, make_stage_error, run_trials, write_inputs
from tasks.params import Params, load_params
from tasks.params.choices import read_unit
from tasks.params.complaint import describe_first_complaint
from tasks.params.search import explain_unsearchable, make_patch, make_train_changes
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError, DivergedError, exit_with_one_line
from tasks.process.lock import lock_machine, lock_workspace
from tasks.process.logs import configure_logging
from tasks.process.parent import STARTER
from tasks.records.evaluation import EvaluationFile
from tasks.records.fingerprint import MachineFile
from tasks.records.search import RepeatRecord, SearchFile, SpreadRecord, TrialRecord
from tasks.records.sources import BaseModelManifest, RawManifest
from tasks.reporting.search import tell_best, tell_luck, write_search_report
from tasks.services.tracked import Figures, Report, TrackedComparison, flatten
from tasks.services.tracker import send_trials
from tasks.store.kept import fill_folder
from tasks.store.links import link_folder
from training.process.files import digest_json

_log = logging.getLogger(__name__)

_EVALUATING = Path(".work/search/evaluating")
_RUNS = Path(".work/runs")
_PARAMS = Path("params.yaml")
_LOGS = Path(".work/logs")
_REPORTS = Path("reports")


def choose_promoted(losses: dict[int, float], *, eta: int) -> list[int]:
    """Return which trials go on, the best first: one in `eta`, at least one; of equal losses the lower number."""
    return rank(losses)[: max(1, len(losses) // eta)]


def rank(losses: dict[int, float]) -> list[int]:
    """Return the trials, number -> held-out loss, from the best to the worst."""
    return sorted(losses, key=lambda index: (losses[index], index))


class Search:
    """One search of the comparison in params.yaml."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.asked = params.search
        self.cell = params.baseline
        self.drawn = [self.asked.draw(index) for index in range(self.asked.trials)]
        self.trials = [
            Trial.plan(f"trial-{index}", drawn, make_train_changes(params, drawn), cell=self.cell)
            for index, drawn in enumerate(self.drawn)
        ]
        machine = MachineFile.read(self.trials[0].command.find_path("--machine"))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = visible.split(",") if visible and machine.num_gpus else list(map(str, range(machine.num_gpus)))
        self.losses: dict[int, dict[int, float]] = {}
        """Epochs of a rung -> number of a trial -> held-out loss after them."""
        self.base_loss = math.nan
        self.runs: dict[str, Path] = {}
        """Name of a trial -> folder of its longest run."""
        self.heldout: dict[str, float] = {}
        """Name of a trial -> loss on the held-out rows after that."""

    def climb(self) -> None:
        """Train and compare rung by rung."""
        going = list(range(len(self.trials)))
        for epochs in self.asked.rungs:
            losses = self.train([self.trials[index] for index in going], epochs)
            self.losses[epochs] = {index: losses[name] for index in going if (name := f"trial-{index}") in losses}
            if not self.losses[epochs]:
                raise DivergedError(f"all trials diverged by {epochs} epochs; lower search.learning_rate")
            _log.info("%d epochs: %s", epochs, _describe_losses(self.losses[epochs]))
            self.track()
            going = choose_promoted(self.losses[epochs], eta=self.asked.eta)

    @property
    def best(self) -> int:
        """The number of the trial that won."""
        return rank(self.losses[self.asked.rungs[-1]])[0]

    def find_runner_up(self) -> tuple[int, int] | None:
        """Return who came next where the best was last compared with any, and the epochs after which; None: nobody."""
        for epochs in reversed(self.asked.rungs):
            others = [index for index in rank(self.losses[epochs]) if index != self.best]
            if others:
                return others[0], epochs
        return None

    def train(self, trials: list[Trial], epochs: int, *, at_once: int | None = None) -> dict[str, float]:
        """Have the trials trained so far; return name -> held-out loss of those that did not diverge."""
        run_trials(trials, epochs, at_once=at_once or self.asked.at_once, devices=self.devices)
        whole = [trial for trial in trials if trial.is_finished(epochs)]
        require_comparable(whole, epochs, span=self.asked.rungs[-1])
        losses = self._evaluate(whole, epochs)
        self.runs |= {trial.name: trial.locate_run(epochs) for trial in whole}
        self.heldout |= losses
        return losses

    def _evaluate(self, trials: Sequence[Trial], epochs: int) -> dict[str, float]:
        """Return name -> loss on the held-out rows, by the stage `evaluate`, which keeps what it has found."""
        if not trials:
            return {}
        shutil.rmtree(_EVALUATING, ignore_errors=True)
        runs, command = _EVALUATING / "runs", StageCommand.read("evaluate")
        for trial in trials:
            link_folder(trial.locate_run(epochs), runs / trial.name)
        raw = read_strict_yaml(_PARAMS)
        raw = {key: value for key, value in raw.items() if key not in ("search", "upload")}
        raw["cells"] = dict.fromkeys((trial.name for trial in trials), raw["cells"][self.cell])
        inputs = command.find_path("--inputs")
        params, inputs, _ = write_inputs(_EVALUATING, raw, inputs, without=[str(command.find_path("--runs"))])
        found = _EVALUATING / "found"
        _run_stage("evaluate", command.replace(params=params, inputs=inputs, runs=runs, evaluation=found))
        models = EvaluationFile.read(found).models
        self.base_loss = models["base"].loss
        return {trial.name: models[trial.name].loss for trial in trials}

    def repeat(self) -> list[RepeatRecord]:
        """Return the best configuration and the runner-up trained with other seeds, as far as they were compared."""
        found = self.find_runner_up()
        if found is None:
            return []
        runner_up, epochs = found
        seeds = [self.params.train.seed + number for number in range(1, self.asked.repeats + 1)]
        repeated = {(index, seed): self._plan_again(index, seed) for index in (self.best, runner_up) for seed in seeds}
        losses = self.train(list(repeated.values()), epochs)
        return [
            RepeatRecord(trial=index, seed=seed, loss=losses.get(trial.name))
            for (index, seed), trial in repeated.items()
        ]

    def _plan_again(self, index: int, seed: int) -> Trial:
        changes = {**make_train_changes(self.params, self.drawn[index]), "seed": seed}
        return Trial.plan(f"trial-{index}-seed-{seed}", self.drawn[index], changes, cell=self.cell)

    def spread(self) -> SpreadRecord | str:
        """Return an epoch of the best configuration by the ranks of another cell, or why there is none."""
        cell = next((name for name, one in self.params.cells.items() if one.world_size > 1), None)
        if cell is None:
            return "no cell of params.yaml has several ranks"
        drawn, num_ranks = self.drawn[self.best], self.params.cells[cell].world_size
        if self.params.cells[cell].num_nodes > 1 or drawn.batch_size % self.params.count_shares(cell):
            return f"{cell} cannot split the best batch of {drawn.batch_size} on this machine"
        trial = Trial.plan(f"trial-{self.best}-{cell}", drawn, make_train_changes(self.params, drawn), cell=cell)
        run_trials([trial], 1, at_once=1, devices=self.devices)
        if trial.problem is not None:
            return trial.problem
        self.runs[trial.name] = trial.locate_run(1)
        return SpreadRecord(cell=cell, world_size=num_ranks, epoch=read_epochs(trial, 1)[0])

    def hand_over(self) -> None:
        """Give the best one's segments to the comparison, whose stage `train` takes them for its own."""
        for part in self.trials[self.best].segments:
            target = _RUNS / self.cell / "segments" / part.fingerprint
            if not target.exists():
                with fill_folder(target) as new:
                    link_folder(self.trials[self.best].folder / "work" / "segments" / part.fingerprint, new)

    def make_record(self, repeats: list[RepeatRecord], spread: SpreadRecord | str) -> SearchFile:
        """Return what was found."""
        command, found = self.trials[0].command, self.find_runner_up()
        changes = make_train_changes(self.params, self.drawn[self.best])
        raw = read_strict_yaml(_PARAMS)
        machine = MachineFile.read(command.find_path("--machine"))
        return SearchFile(
            name=self.params.name,
            model=BaseModelManifest.read(command.find_path("--base-model")).label,
            dataset=RawManifest.read(StageCommand.read("report").find_path("--raw")).label,
            device="cuda" if machine.num_gpus else "cpu",
            unit=read_unit(self.params.workload),
            range=str(self.params.ranges[0]),
            heldout=str(self.params.heldout),
            cell=self.cell,
            rungs=self.asked.rungs,
            eta=self.asked.eta,
            at_once=self.asked.at_once,
            seed=self.asked.seed,
            train_seed=self.params.train.seed,
            base_loss=self.base_loss,
            trials=[self._record(index) for index in range(len(self.trials))],
            best=self.best,
            runner_up=found[0] if found else None,
            compared_after=found[1] if found else None,
            repeats=repeats,
            spread=None if isinstance(spread, str) else spread,
            why_no_spread=spread if isinstance(spread, str) else None,
            patch=make_patch(_PARAMS.read_text(encoding="utf-8"), changes),
            patch_problem=_find_problem({**raw, "train": {**raw["train"], **changes}}),
        )

    def _record(self, index: int) -> TrialRecord:
        losses = {epochs: found[index] for epochs, found in self.losses.items() if index in found}
        trial = self.trials[index]
        return TrialRecord(
            name=trial.name, **self.drawn[index]._asdict(), losses=losses,
            epochs=read_epochs(trial, max(losses)) if losses else [], problem=trial.problem,
        )  # fmt: skip

    def track(self, report: Sequence[Path] = ()) -> None:
        """Send the trials to the trackers, below one run, and at the end the files of the report."""
        content = self.params.model_dump(mode="json", exclude={"tracking", "upload", "description"})
        search = TrackedComparison(
            experiment=self.params.tracking.experiment,
            name=f"{self.params.name}-search",
            description=f"Search of {len(self.trials)} trials: {self.params.description}",
            digest=digest_json([content["search"], [trial.segments[-1].fingerprint for trial in self.trials]]),
            facts=flatten(content),
        )
        figures: Figures = {None: {}}
        figures |= {name: {"final/heldout_loss": loss} for name, loss in self.heldout.items()}
        table = [{"trial": name, "heldout_loss": loss} for name, loss in self.heldout.items()]
        files = {str(file.relative_to(_REPORTS)): file for file in report}
        final = Report(files=files, figures=figures, tables={"trials": table}, tags={None: {}})
        send_trials(self.params, search, self.runs, final if report else None)


def _find_problem(raw: dict[str, object]) -> str | None:
    """Return what params.yaml would lack if it read so; None if it is valid."""
    try:
        Params.model_validate(raw)
    except ValidationError as error:
        return describe_first_complaint(error, Params)
    return None


def _describe_losses(losses: dict[int, float]) -> str:
    return ", ".join(f"trial-{index} {losses[index]:.4f}" for index in rank(losses))


def _run_stage(stage: str, command: list[str] | None = None) -> None:
    """Bring a stage up to date by DVC, or run its `command` by itself; raises the StageError that it ended with."""
    output = StageOutput(_LOGS / f"search-{stage}.log", send=lambda _: None)
    environment = {**make_environment(sys.executable), STARTER: str(os.getpid())}
    try:
        if command is None:
            code = reproduce(stage, environment={}, hear=output.hear)
        else:
            code = run_child(command, env=environment, hear=output.hear)
    finally:
        output.close()
    if code:
        message = output.last_lines[-1] if output.last_lines else f"{stage} ended with {code}"
        if command is None:
            from flows.dvc_stage import explain_failure  # here, not above: it brings Prefect, which takes a second

            message, code = explain_failure(output.last_lines, code)
        raise make_stage_error(message, code)


def _main() -> None:
    argparse.ArgumentParser(
        prog="python -m flows.search", description="Search the parameters of params.yaml."
    ).parse_args()
    configure_logging()
    params = load_params()
    if unfit := explain_unsearchable(params):
        raise ConfigurationError(f"params.yaml: {unfit}")
    with lock_workspace("make search"):
        for stage in ("fingerprint", "download", "slice"):
            _run_stage(stage)
        with lock_machine("make search"):
            found = _search(params)
    sys.stdout.write(f"{tell_best(found)}\n{tell_luck(found)}\nReport: {_REPORTS / 'search.html'}\n")


def _search(params: Params) -> SearchFile:
    search = Search(params)
    search.climb()
    repeats = search.repeat()
    found = search.make_record(repeats, search.spread())
    search.hand_over()
    search.track(write_search_report(found, _REPORTS))
    return found


if __name__ == "__main__":
    exit_with_one_line(_main, name="search")
