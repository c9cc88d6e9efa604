"""What the seconds are seconds of."""

import time
from typing import Any

from tests.museum.exhibit import show
from tests.mutants.patching import Patch

_ONLY_STEPS, _CLOSE = "Only steps were timed", "training.record.window:Window.close"
_training: list[Any] = []
"""Launch, strategy and record of the segment that is trained."""
_updates: list[float] = []


def _note_training(of, *given):
    _training[:] = given
    return of(*given)


def _save_first(of, window, **more):
    from training.loop import _save_partial

    _save_partial(*_training)
    return of(window, **more)


def _upload_first(of, window, **more):
    record = _training[2]
    is_last = window._steps[-1][0] == record.first_step + record.num_steps - 1
    time.sleep(is_last / 4)
    return of(window, **more)


def _upload_in_step(of, replica, learning_rate):
    _updates.append(learning_rate)
    time.sleep(1.5 * (len(_updates) == 3))
    return of(replica, learning_rate)


def _open_first(of, window, *given, **more):
    window.open()
    of(window, *given, **more)


_NOTED = Patch("training.loop:train_segment", _note_training)

EXHIBITS = [
    show(
        "two jobs in one folder", "A second job of the same cell starts while the first one runs.",
        "train: another comparison is training on this machine", scenario="two jobs", spares_baseline=True,
    ),
    show(
        "checkpoint inside the timer", "Each step's clock also runs while a checkpoint is saved.",
        _ONLY_STEPS, _NOTED, Patch(_CLOSE, _save_first),
    ),
    show(
        "upload inside the timer",
        "The last step's clock also runs during an upload (here: a wait of a quarter of a second).",
        _ONLY_STEPS, _NOTED, Patch(_CLOSE, _upload_first),
    ),
    show(
        "upload inside a step", "One step's own seconds hold an upload (here: a wait of a second and a half).",
        _ONLY_STEPS, Patch("training.step.replica:Replica.step", _upload_in_step),
    ),
    show(
        "clock started after the step",
        "The clock is started when a step has been computed, so that it times next to nothing.",
        _ONLY_STEPS, Patch("training.record.window:Window.add", _open_first),
    ),
    show(
        "data-bound run called GPU scaling",
        "The loader is slow; more ranks are faster because there are more loaders.",
        "Not data-bound",
        Patch("training.data.batches:Slice.row", lambda of, *given: (time.sleep(0.02), of(*given))[1]),
    ),
]  # fmt: skip
