"""Functions of an update that are wrong, or wait or fail, by name; imports nothing of the product."""

import functools
import os
import time
from unittest import mock

from tests.mutants.patching import Patch

_LOOP, _REPLICA, _WINDOW = "training.loop", "training.step.replica:Replica", "training.record.window:Window"
_PROCESS = "tasks.equivalence.reference.update:OneProcess"
_UPDATE, _RUN = f"{_REPLICA}.optimizer_step", "training.strategies.ddp.step:Ddp._accumulate_gradient"


def _refuse_samples(of, *given, **named):
    import torch

    if any(getattr(part, "num_samples", 0) > 1 for part in given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.32 GiB")
    return of(*given, **named)


def _wait_first(of, *given, **named):
    time.sleep(0.5)
    return of(*given, **named)


def _scale_gradient(of, step, micro_batches, *, weight, factor, ranks="01"):
    is_changed = os.environ.get("RANK", "0") in ranks
    return of(step, micro_batches, weight=weight * factor if is_changed else weight)


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


def _round_weights(*given):
    """Round the weights of a strategy that is given, or of a launch's, to 16 bit."""
    import torch

    with torch.no_grad():
        for part in (part for owner in given if hasattr(owner, "replica") for part in owner.replica.parameters):
            part.copy_(part.bfloat16().float())


def _round_after(of, *given):
    found = of(*given)
    _round_weights(*given)
    return found


def _round_before(of, *given, **named):
    _round_weights(*given)
    return of(*given, **named)


_kept = []
"""Whose gradient the last update left there."""


def _keep_gradient(of, replica, learning_rate):
    _kept[:] = [replica]
    with mock.patch.object(replica, "zero_grad"):
        return of(replica, learning_rate)


def _drop_gradient(of, window):
    of(window)
    for replica in _kept:
        replica.zero_grad()


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


BETWEEN = ("weights rounded in the warm-up", "weights rounded before they are saved")
"""What changes the state where no step does."""
PATCHES = {
    "no memory on the ranks": [Patch(f"{_REPLICA}.forward_backward", _refuse_samples)],
    "no memory in the one process": [Patch(f"{_PROCESS}._compute_micro_batch_gradient", _refuse_samples)],
    "slow process": [Patch("tasks.equivalence.replay:check_update", _wait_first)],
    # Tried from a late step on.
    "rank 1's gradient thrown away": [Patch(_RUN, functools.partial(_scale_gradient, factor=0.0, ranks="1"))],
    "gradient halved": [Patch(_RUN, functools.partial(_scale_gradient, factor=0.5))],
    "learning rate of 1.1 times the recorded one": [Patch(_UPDATE, lambda of, replica, rate: of(replica, 1.1 * rate))],
    "no update": [Patch(_UPDATE, _make_no_update)],
    "moments emptied once": [Patch(_UPDATE, _empty_moments)],
    BETWEEN[0]: [Patch(f"{_LOOP}:_warm_up", _round_after)],
    BETWEEN[1]: [Patch(f"{_LOOP}:_finish", _round_before)],
    # Before a step.
    "weights rounded by an evaluation": [Patch(f"{_LOOP}:_evaluate", _round_after)],
    "weights rounded by a checkpoint": [Patch(f"{_LOOP}:_save_partial", _round_after)],
    "gradient dropped at log points alone": [Patch(_UPDATE, _keep_gradient), Patch(f"{_WINDOW}.open", _drop_gradient)],
    "half of the update made, the rest at log points": [Patch(_UPDATE, _go_half), Patch(f"{_WINDOW}.close", _go_whole)],
}
