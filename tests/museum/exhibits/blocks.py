"""What the timed blocks are seconds of: defects in what only the stage `measure` runs."""

import itertools
import os
import time
from dataclasses import replace

from tests.museum.exhibit import Exhibit, show
from tests.museum.exhibits.common import count_ranks
from tests.mutants.patching import Patch

_SAME_WORK, _WORK, _TRAINING = "Same work in every cell", "Timed blocks did the work", "Training bears out the blocks"
_BUILD, _LIST = "training.probing.variants:build_variant", "training.probing.variants:list_micro_batches"
_REPLICA = "training.step.replica:Replica"


def _deal_half(of, *given, world_size, **more):
    return of(*given, world_size=world_size * min(world_size, 2), **more)


def _run_half(of, step, micro_batches, *, learning_rate, **more):
    # A block's learning rate is 0.
    return of(step, micro_batches[learning_rate == 0 :], learning_rate=learning_rate, **more)


def _draw_steps(of, bench, arms, order, timed_turns):
    by_name = {arm.name: arm for arm in arms}
    for name in next(order):
        timed_turns.add(bench.run(by_name[name], bench.choose_steps()))


def _enlarge(name: str) -> Patch:
    """Return a variant of which a number of samples grows with the ranks."""

    def change(of, variant, config, *given):
        return of(variant, replace(config, **{name: getattr(config, name) * config.world_size}), *given)

    return Patch(_BUILD, change)


def _keep_gradients(of, variant, config, ranks, *given):
    return of(replace(variant, communicates=variant.communicates and ranks.world_size == 1), config, ranks, *given)


def _learn_nothing(of, replica, loss_sum, *, weight):
    if count_ranks() > 1:
        of(replica, loss_sum, weight=weight)
    else:
        replica.count_loss(loss_sum.detach())


def _leave_out_updates(which) -> Patch:
    """Return an update of a timed block of several ranks that clips and forgets, on this rank and in this step."""
    steps = itertools.count()

    def change(of, replica, rate):
        if rate or count_ranks() == 1 or not which(int(os.environ["RANK"]), next(steps)):
            return of(replica, rate)
        norm = replica._clip(replica.parameters)
        return replica.forget_gradient(), norm

    return Patch(f"{_REPLICA}.step", change)


def _forget_half(of, replica, parameters):
    norm = of(replica, parameters)
    for part in parameters[::2] if count_ranks() > 1 else []:
        part.grad = None
    return norm


def _compute_twice(of, step, micro_batches, **more):
    for micro_batch in micro_batches if count_ranks() == 1 else []:
        step.replica.forward(step.replica.module, micro_batch)
    return of(step, micro_batches, **more)


def _wrap(of, cell):
    arm = of(cell)
    return replace(arm, variant={**arm.variant, "strategy": "ddp"})


def _search_anomalies(of, *given):
    import torch

    torch.autograd.set_detect_anomaly(count_ranks() == 1)
    return of(*given)


def _leave_out(of, timed_turns, block):
    if block.turn % 4:
        of(timed_turns, block)


def _wait(of, *given, learning_rate, **more):
    time.sleep(0.2 * (learning_rate == 0 and count_ranks() == 1))
    return of(*given, learning_rate=learning_rate, **more)


def _stop_early(of, runner, made, block, run):
    found = of(runner, made, block, run)
    return found | {"seconds": found["seconds"] / (1 if count_ranks() == 1 else 4 * len(block.steps))}


def _scale(of, first, other, **more):
    return of(first, [[0.7 * seconds for seconds in launch] for launch in other], **more)


def _take_median(of, launches):
    import numpy as np

    return float(np.median(np.concatenate(launches)))


def _publish(factor) -> Patch:
    """Return an account of each arm with a multiple of its speedup."""

    def change(of, *given):
        arm = of(*given)
        speedup = arm.speedup and replace(arm.speedup, value=factor * arm.speedup.value)
        return arm.model_copy(update={"speedup": speedup})

    return Patch("tasks.measuring.account:_compute_arm_speed", change)


def _timed(key: str, defect: str, caught_by: str, patch: Patch) -> Exhibit:
    return show(f"timed: {key}", defect, caught_by, patch, is_timed=True)


EXHIBITS = [
    _timed(
        "half the tokens", "A timed step of several ranks leaves out half of the micro-batches.",
        _WORK, Patch("training.probing.variants:make_micro_batches", _deal_half),
    ),
    _timed(
        "half the tokens, all counted", "The same, but the tokens are counted as if all had been run.",
        _WORK, Patch("training.strategies.ddp:Ddp.train_step", _run_half),
    ),
    _timed(
        "other rows", "The several-rank cell is timed on other steps than the one process.",
        _WORK, Patch(_LIST, lambda of, made, step: of(made, step if made.shares[1] == 1 else step % 4 + 1)),
    ),
    _timed(
        "each arm draws its own steps", "The arms of a turn run different steps, long rows here and short ones there.",
        _WORK, Patch("tasks.measuring.bench:Bench.run_turn", _draw_steps),
    ),
    _timed(
        "weak scaling called strong",
        "Twice the ranks are timed on twice the global batch, and seconds per step compared.",
        _WORK, _enlarge("global_batch_size"),
    ),
    _timed(
        "larger micro-batches in one arm", "The several-rank cell is timed with twice the micro-batch of the baseline.",
        _WORK, _enlarge("micro_batch_size"),
    ),
    _timed(
        "no exchange", "The timed step of several ranks exchanges no gradient.",
        _WORK, Patch(_BUILD, _keep_gradients),
    ),
    _timed(
        "nothing learned", "The timed step of one process runs no backward.",
        _WORK, Patch(f"{_REPLICA}.add_backward", _learn_nothing),
    ),
    _timed(
        "no update", "The optimizer is left out of the timed step of several ranks.",
        _WORK, _leave_out_updates(lambda rank, step: True),
    ),
    _timed(
        "update on one rank alone", "Of two ranks one leaves the optimizer out of its timed step.",
        _WORK, _leave_out_updates(lambda rank, step: rank == 1),
    ),
    _timed(
        "every second update", "Several ranks leave the optimizer out of every second timed step.",
        _WORK, _leave_out_updates(lambda rank, step: step % 2 == 1),
    ),
    _timed(
        "half of the parameters updated", "Several ranks update every second parameter in a timed step.",
        _WORK, Patch(f"{_REPLICA}._clip_whole", _forget_half),
    ),
    _timed(
        "weights that move", "The learning rate of a block is not 0, so that every block is of another model.",
        _WORK, Patch(f"{_REPLICA}.step", lambda of, replica, rate: of(replica, rate or 1e-2)),
    ),
    _timed(
        "baseline in a DDP wrapper", "The one process is timed inside a DDP wrapper and called the plain one.",
        _WORK, Patch("tasks.measuring.arms:make_trained_arm", _wrap),
    ),
    _timed(
        "loss computed twice in the baseline", "The timed step of one process runs each forward twice.",
        "Baseline is not slowed", Patch("training.strategies.single:Single._run", _compute_twice),
    ),
    _timed(
        "debugging left on in the baseline",
        "One process searches for anomalies while it is timed, and not while it is trained.",
        _SAME_WORK, Patch(_BUILD, _search_anomalies),
    ),
    _timed(
        "turns left out",
        "Every fourth turn is thrown away (here: whatever it gave) before anything is worked out.",
        _TRAINING, Patch("tasks.measuring.turns:TimedTurns.add", _leave_out),
    ),
    _timed(
        "a wait in the baseline's step",
        "The timed step of one process waits (here: for a fifth of a second); its training does not.",
        _TRAINING, Patch("training.strategies.single:Single.train_step", _wait),
    ),
    _timed(
        "clock stopped too early", "The clock of several ranks stops when the first step of a block is a quarter done.",
        _TRAINING, Patch("training.probing.timed_blocks:BlockRunner._time_block", _stop_early),
    ),
    _timed(
        "seconds of one arm scaled", "The speedup is computed from seconds that the blocks did not take.",
        _TRAINING, Patch("tasks.measuring.speedups:estimate_speedup", _scale),
    ),
    _timed(
        "medians published",
        "The published speedup is one of medians, which leaves out the stalls that users pay for.",
        _TRAINING, Patch("tasks.measuring.intervals:_compute_mean", _take_median),
    ),
    _timed(
        "published speedup multiplied", "What is published is 1.36 times what was measured.",
        _TRAINING, _publish(1.36),
    ),
    _timed("published speedup halved", "What is published is half of what was measured.", _TRAINING, _publish(0.49)),
]  # fmt: skip
