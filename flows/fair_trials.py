"""Whether trials may be compared: as many tokens, by one schedule that ran over the same epochs, by their own records.

Two mistakes of published searches are refused here: trials of different numbers of epochs side by side, and a learning
rate that starts again with every epoch.
"""

import math
from collections.abc import Sequence

from flows.trials import Trial
from tasks.process.failure import DataError
from tasks.records.outputs import SegmentOutputs
from tasks.records.run import RunFile, read_segment
from training.step.schedule import compute_learning_rate


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
            _require_schedule(trial, part, num_steps=span * part.facts.num_steps)
    if len(set(tokens.values())) > 1:
        low, high = min(tokens, key=lambda name: tokens[name]), max(tokens, key=lambda name: tokens[name])
        raise DataError(
            f"{low} learned from {tokens[low]:,} tokens and {high} from {tokens[high]:,}; allowed: as many in all "
            "trials that are compared"
        )


def _require_schedule(trial: Trial, part: SegmentOutputs, *, num_steps: int) -> None:
    train, steps = trial.params.train, part.read_steps()
    for step, rate in zip(steps.step.tolist(), steps.learning_rate.tolist(), strict=True):
        wanted = compute_learning_rate(
            step, num_steps, peak=train.learning_rate, schedule=train.schedule, warmup_steps=train.warmup_steps,
            floor=train.schedule_floor, decay_steps=train.decay_steps,
        )  # fmt: skip
        if not math.isclose(rate, wanted, rel_tol=1e-9, abs_tol=1e-15):
            raise DataError(
                f"{trial.name}: learning rate {rate:.3g} in step {step}, by one schedule over {num_steps} steps "
                f"{wanted:.3g}; allowed: that schedule from the first step of a trial to its last"
            )
