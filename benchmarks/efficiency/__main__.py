"""How many samples does a larger batch need for an equally good model, and does the noise scale foretell it?

    python -m benchmarks.efficiency train embedded --work FOLDER --question rule
    python -m benchmarks.efficiency train abstracts --data FOLDER --work FOLDER
    python -m benchmarks.efficiency score --work FOLDER

`train` adds to FOLDER/<workload>.jsonl what is missing there, one training after the other by this one process;
`score` writes benchmarks/results/<date>_<machine>_efficiency.{json,md} of all that stands in FOLDER.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.efficiency.noise import measure_noise
from benchmarks.efficiency.questions import Trial, list_trials
from benchmarks.efficiency.recipe import (
    Curve,
    NoisePoint,
    Recipe,
    append_curve,
    find_curve,
    read_curves,
    select_target,
)
from benchmarks.efficiency.trainee import Trainee
from benchmarks.efficiency.workloads import WORKLOADS, locate_heldout, make_config, prepare
from benchmarks.throughput.rows import data_folder

_NOISE_AT = (0.0, 0.125, 0.375, 0.6875, 1.0)
"""Shares of the baseline's samples after which the noise is measured."""
_NOISE_BATCHES = 16


def train(recipe: Recipe, folder: Path, *, target: float | None, takes_noise: bool) -> Curve:
    """Return what comes of a recipe; it ends when the held-out loss is the target, if one is given."""
    plan, heldout = WORKLOADS[recipe.workload], locate_heldout(folder)
    trainee = Trainee(make_config(folder), recipe)
    points, noise, losses = list[tuple[int, float]](), list[NoisePoint](), list[float]()
    marks = [share * recipe.samples for share in _NOISE_AT] if takes_noise else []
    steps = trainee.list_steps()
    while True:
        if trainee.num_samples >= len(points) * plan.every:
            points.append((trainee.num_samples, trainee.evaluate(heldout, most_rows=plan.heldout)))
            if target is not None and points[-1][1] <= target:
                break
        if marks and trainee.num_samples >= marks[0]:
            marks.pop(0)
            plain, scaled = measure_noise(trainee, num_batches=_NOISE_BATCHES)
            noise.append(NoisePoint(samples=trainee.num_samples, plain=plain, scaled=scaled))
        step = next(steps, None)
        if step is None:
            break
        losses.append(trainee.step(step))
    if points[-1][0] < trainee.num_samples:
        points.append((trainee.num_samples, trainee.evaluate(heldout, most_rows=plan.heldout)))
    return Curve(recipe=recipe, points=points, noise=noise, norms=trainee.norms, losses=losses)


def train_trial(trial: Trial, folder: Path, file: Path, *, noise_alone: bool = False) -> None:
    """Train what the file has not yet: first the baselines, then the others until the target.

    `noise_alone`: the first baseline and nothing else.
    """

    def reuse_or_train(recipe: Recipe, target: float | None, *, takes_noise: bool) -> Curve:
        found = find_curve(read_curves(file), recipe)
        if found is None:
            started = time.process_time()
            found = train(recipe, folder, target=target, takes_noise=takes_noise)
            append_curve(file, found)
            seconds = time.process_time() - started
            print(f"{trial.question} {recipe}: {found.points[-1]}, {seconds:.0f} s of processor", flush=True)
        return found

    baselines = [
        reuse_or_train(
            one, None, takes_noise=trial.question in ("rule", "preset") and one.seed == trial.baselines[0].seed
        )
        for one in (trial.baselines[:1] if noise_alone else trial.baselines)
    ]
    if noise_alone:
        return
    target = None if trial.baselines[0].schedule == "run" else select_target(baselines)
    for recipe in trial.recipes:
        reuse_or_train(recipe, target, takes_noise=False)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.efficiency", description=__doc__)
    parser.add_argument("what", choices=["train", "score"])
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--data", type=Path, help="folder with what is not built in")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--question", nargs="+", help="some of: rule, preset, passes, sawtooth, rate, memory, warm-up, schedule"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise-alone", action="store_true", help="train the first baseline alone, for its noise")
    parser.add_argument(
        "--measured", type=Path, help="an earlier result (.json): what larger batches needed that are not trained here"
    )
    parser.add_argument("--name", help="of the result, where another of the day has the usual one")
    arguments = parser.parse_args()
    if arguments.what == "train":
        for name in arguments.workloads:
            _train_all(
                name, arguments.work, data_folder(arguments.data), range(1, arguments.seeds + 1), arguments.question,
                noise_alone=arguments.noise_alone,
            )  # fmt: skip
    else:
        from benchmarks.efficiency.score import write_scores

        path = write_scores(arguments.work, measured=arguments.measured, name=arguments.name)
        print(path.read_text(encoding="utf-8"))


def _train_all(
    name: str,
    work: Path,
    data: Path | None,
    seeds: Sequence[int],
    questions: Sequence[str] | None,
    *,
    noise_alone: bool,
) -> None:
    folder = work.resolve() / name
    prepare(name, folder, data=data)
    for trial in list_trials(name, seeds=seeds):
        if questions is None or trial.question in questions:
            train_trial(trial, folder, work / f"{name}.jsonl", noise_alone=noise_alone)


if __name__ == "__main__":
    _main()
