"""Functions of an update that are wrong, or wait or fail, by name; imports nothing of the product."""

import functools
import os
import time

from tests.mutants.patching import Patch

_ADD, _CLIP = "training.step.replica:Replica.forward_backward", "training.step.replica:Replica._clip_whole"


def _refuse_samples(of, *given, **named):
    import torch

    if any(getattr(part, "num_samples", 0) > 1 for part in given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.32 GiB")
    return of(*given, **named)


def _wait_first(of, *given, **named):
    time.sleep(0.5)
    return of(*given, **named)


OTHERS = {
    "no memory on the ranks": Patch(_ADD, _refuse_samples),
    "no memory in the one process": Patch(
        "tasks.equivalence.reference.update:OneProcess._compute_micro_batch_gradient", _refuse_samples
    ),
    "slow process": Patch("tasks.equivalence.replay:check_update", _wait_first),
}


def _scale_gradient(of, step, micro_batches, *, weight, factor, ranks=("0", "1")):
    is_changed = os.environ.get("RANK", "0") in ranks
    return of(step, micro_batches, weight=weight * factor if is_changed else weight)


def _change_rate(of, replica, learning_rate):
    return of(replica, 1.1 * learning_rate)


def _make_no_update(of, replica, learning_rate):
    norm = replica.clip(replica.parameters)
    return replica.reset(), norm.to(replica.device)


def _empty_moments(of, replica, learning_rate):
    """Update as an optimizer that is made anew: each update then follows from the moments before it."""
    for kept in () if _emptied else replica.optimizer.state.values():
        for part in kept.values():
            part.zero_()
    _emptied.append(True)
    return of(replica, learning_rate)


_emptied = []
_RUN, _UPDATE = "training.strategies.ddp.step:Ddp._accumulate_gradient", "training.step.replica:Replica.optimizer_step"
LATE = {
    "rank 1's gradient thrown away": Patch(_RUN, functools.partial(_scale_gradient, factor=0.0, ranks=("1",))),
    "gradient halved": Patch(_RUN, functools.partial(_scale_gradient, factor=0.5)),
    "learning rate of 1.1 times the recorded one": Patch(_UPDATE, _change_rate),
    "no update": Patch(_UPDATE, _make_no_update),
    "moments emptied once": Patch(_UPDATE, _empty_moments),
}
"""What is tried from a late step on."""


def _round_weights(of, *given):
    """Round the weights of a strategy that is given, or of a launch's, to 16 bit."""
    import torch

    found = of(*given)
    for replica in [part.replica for part in given if hasattr(part, "replica")]:
        with torch.no_grad():
            for part in replica.parameters:
                part.copy_(part.bfloat16().float())
    return found


def _round_first(of, *given, **named):
    _round_weights(lambda *_: None, *given)
    return of(*given, **named)


_kept = []
_drops = []


def _while_kept(of, *given):
    _kept.append(True)
    try:
        return of(*given)
    finally:
        _kept.pop()


def _drop_when_opened(of, launch, strategy, *more):
    _drops[:] = [strategy.replica.zero_grad]
    return of(launch, strategy, *more)


_whole = []


def _go_half(of, replica, learning_rate):
    import torch

    before = [part.detach().clone() for part in replica.parameters]
    found = of(replica, learning_rate)
    _whole[:] = [(part, part.detach().clone()) for part in replica.parameters]
    with torch.no_grad():
        for part, start in zip(replica.parameters, before, strict=True):
            part.lerp_(start, 0.5)
    return found


def _go_whole(of, window, **named):
    for part, whole in _whole:
        part.data.copy_(whole)
    return of(window, **named)


BETWEEN = {
    "weights rounded in the warm-up": Patch("training.loop:_warm_up", _round_weights),
    "weights rounded before they are saved": Patch("training.loop:_finish", _round_first),
}
"""What changes the state where no step does."""
BEFORE_A_STEP = {
    "weights rounded by an evaluation": Patch("training.loop:_evaluate", _round_weights),
    "weights rounded by a checkpoint": Patch("training.loop:_save_partial", _round_weights),
}
PATCHES = {key: [patch] for key, patch in (OTHERS | LATE | BETWEEN | BEFORE_A_STEP).items()}
PATCHES["gradient dropped at log points alone"] = [
    Patch("training.step.replica:Replica.optimizer_step", _while_kept),
    Patch("training.step.replica:Replica.zero_grad", lambda of, replica: None if _kept else of(replica)),
    Patch("training.loop:train_segment", _drop_when_opened),
    Patch("training.record.window:Window.open", lambda of, window: (of(window), [drop() for drop in _drops])[0]),
]
PATCHES["half of the update made, the rest at log points"] = [
    Patch("training.step.replica:Replica.optimizer_step", _go_half),
    Patch("training.record.window:Window.close", _go_whole),
]
