"""Whether trials may be compared: as many tokens, by one schedule that ran over the same epochs, by their own records.

Two mistakes of published searches are refused here: trials of different numbers of epochs side by side, and a learning
rate that starts again with every epoch.
"""

import math
from collections.abc import Iterable

from flows.trials import Trial
from tasks.params import Params
from tasks.process.failure import DataError
from tasks.records.outputs import SegmentOutputs
from tasks.records.run import RunFile, read_segment
from tasks.records.search import TrialEpoch
from training.step.schedule import compute_learning_rate


def read_epochs(trial: Trial, epochs: int) -> list[TrialEpoch]:
    """Return what each epoch of the trial came to, of its run up to so many."""
    return [
        TrialEpoch(num_tokens=part.facts.num_tokens, train_seconds=part.facts.train_seconds)
        for part in _read_parts(trial, epochs)
    ]


def require_comparable(trials: Iterable[Trial], epochs: int, *, span: int) -> None:
    """Raise DataError unless all learned from as many tokens in `epochs` by one schedule over `span` epochs each."""
    found = {trial.name: _read_parts(trial, epochs) for trial in trials}
    tokens = {name: sum(part.facts.num_tokens for part in parts) for name, parts in found.items()}
    passes = {name: len(parts) for name, parts in found.items()}
    for what, counted in (("epochs", passes), ("tokens", tokens)):
        if len(set(counted.values())) > 1:
            (low, least), (high, most) = min(counted.items(), key=_count), max(counted.items(), key=_count)
            raise DataError(f"{low} learned from {least:,} {what}, {high} from {most:,}; allowed: trials with as many")
    for trial in trials:
        _require_schedule(trial, found[trial.name], span=span)


def _count(item: tuple[str, int]) -> int:
    return item[1]


def _read_parts(trial: Trial, epochs: int) -> list[SegmentOutputs]:
    folder = trial.locate_run(epochs)
    places = [folder / part.folder for part in RunFile.read(folder).segments]
    return [SegmentOutputs(place, read_segment(place)) for place in places]


def _require_schedule(trial: Trial, parts: list[SegmentOutputs], *, span: int) -> None:
    """Raise DataError unless every step had the rate of one schedule over so many epochs."""
    train = Params.model_validate(trial.raw).train
    for part in parts:
        steps = part.read_steps()
        for step, rate in zip(steps.step.tolist(), steps.learning_rate.tolist(), strict=True):
            wanted = compute_learning_rate(
                step, span * part.facts.num_steps, peak=train.learning_rate, schedule=train.schedule,
                warmup_steps=train.warmup_steps, floor=train.schedule_floor, decay_steps=train.decay_steps,
            )  # fmt: skip
            if not math.isclose(rate, wanted, rel_tol=1e-9, abs_tol=1e-15):
                raise DataError(
                    f"{trial.name}: learning rate {rate:.3g} in step {step}, {wanted:.3g} by one schedule over {span} "
                    "epochs; allowed: that schedule for every trial, from its first step to its last"
                )
