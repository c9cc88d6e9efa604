"""The defects that are trained, one for each gate and each refusal of the trainer's; imports nothing of the product.

Each is made by wrong functions of our own trainer or pipeline. What others leave in the records: records.py.
"""

import os
import time
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

from tests.mutants.patching import Patch

_PARTS, _STEP = "training.loop:make_micro_batches", "training.record.window:Window"
_RANKS, _REPLICA, _PLAN = (
    "tasks.ranks.cell_ranks:make_ranks_config", "training.step.replica:Replica", "training.data.plan:plan_segment"
)  # fmt: skip
_training = []
"""Launch, strategy and record of the segment that is trained."""


class Exhibit(NamedTuple):
    """One defect."""

    key: str
    caught_by: str
    """The gate that has to fail, or `STAGE: WORDS` if that stage has to refuse with these words."""
    patches: tuple[Patch, ...]
    """What makes it, and takes out a check inside the trainer, so that the gates stand alone."""
    scenario: str = "train"
    """What is run. train: both cells from nothing; resume: a second range of 2proc after the first one; timed: the
    measurement alone."""
    params: tuple[Any, ...] = ()
    """Changes to params.yaml, by dotted key."""
    spares_baseline: bool = False
    """Whether one process does exactly what it does without the defect, so that its run can be shared."""


def _show(key, caught_by, *patches, **more):
    return Exhibit(key, caught_by, patches, **more)


def _of_2proc(*told, **more):
    return _show(*told, spares_baseline=True, **more)


def _count_ranks():
    """Return the number of ranks, as the launcher tells it; 1 in a process that is no rank."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _spread(strategy):
    return (("cells.2proc", {"strategy": strategy, "world_size": 2, "launcher": "forked"}),)


def _copy_weights(of, replica, learning_rate):
    from torch.distributed import broadcast

    found = of(replica, learning_rate)
    if _count_ranks() > 1:
        for part in replica.parameters:
            broadcast(part.data, 0)
    return found


def _ones_as_labels(of, *given, **more):
    part = of(*given, **more)
    return replace(part, labels=part.labels.where(part.labels == -100, 1))


def _count_as_planned(of, window, step, planned, rate, ranks, *rest):
    tokens, targets = (int(counted) for counted in ranks[:, 5:7].sum(axis=0))
    return of(window, step, replace(planned, num_tokens=tokens, num_targets=targets), rate, ranks, *rest)


def _keep_order(of, *given, **more):
    plan = of(*given, **more)
    return replace(plan, order=plan.order.argsort()[plan.order])


def _take_other_model(of, cell, params, *, base_model, **more):
    return of(
        cell, params, base_model=base_model if cell == "1proc" else base_model.with_name("other_model"), **more
    )  # fmt: skip


def _enlarge_batch(of, *given, **more):
    config = of(*given, **more)
    return replace(config, global_batch_size=8 * config.world_size)


def _restore_no_optimizer(of, replica, state):
    with mock.patch.object(replica.optimizer, "load_state_dict"):
        of(replica, state)


def _restore_first(of, strategy, *saved):
    if strategy._ranks.is_first:
        of(strategy, *saved)


def _train_heldout(of, run, *, base_model, slices):
    config = of(run, base_model=base_model, slices=slices)
    heldout = (slices / str(run.params.heldout)).resolve()
    first, *others = config.segments
    return replace(config, segments=(first, *(replace(part, slice_dir=heldout) for part in others)))


def _save_first(of, window, **more):
    from training.loop import _save_partial

    _save_partial(*_training)
    return of(window, **more)


def _note_training(of, *given):
    _training[:] = given[:3]
    return of(*given)


def _leave_out(of, timed_turns, block):
    # Not of the last turns, of which a slow host may have no more than an interval takes.
    if block.turn % 4 or block.turn >= 12:
        of(timed_turns, block)


def _compute_twice(of, step, micro_batches, **more):
    for micro_batch in micro_batches if _count_ranks() == 1 else []:
        step.replica.forward(step.replica.module, micro_batch)
    return of(step, micro_batches, **more)


_RAW = Patch(
    f"{_REPLICA}.forward_backward",
    lambda of, replica, model, part, *, weight: of(replica, replica.module, part, weight=weight),
)
_UNSHARDED = Patch(
    _PARTS, lambda of, source, step, *, rank, world_size, **more: of(source, step, rank=0, world_size=1, **more)
)

EXHIBITS = [
    # The bare module is trained instead of its DDP wrapper: no gradient is ever exchanged.
    _of_2proc("raw module", "train: the ranks hold different parameters", _RAW),
    # The same, in a trainer that does not compare the ranks' parameters.
    _of_2proc(
        "raw module, trainer's check removed", "Same parameters on all ranks", _RAW,
        Patch("training.loop:_require_same_state", lambda *_: None),
    ),
    # No gradient is exchanged; all ranks copy rank 0's weights after each step, so that weights agree.
    _of_2proc(
        "weights copied in place of gradients", "train: the ranks hold different optimizer states", _RAW,
        Patch(f"{_REPLICA}.optimizer_step", _copy_weights),
    ),
    # Gradients are exchanged on every micro-batch: right weights, needless communication.
    _of_2proc(
        "no no_sync", "Gradients were synchronised",
        Patch(
            "training.strategies.ddp.step:Ddp._accumulate_gradient",
            lambda of, step, parts, *, weight: [of(step, [part], weight=weight) for part in parts][-1],
        ),
    ),
    # Each rank clips the gradient of its own share by the norm of that share.
    _of_2proc(
        "zero1: shares clipped one by one", "Update equivalence",
        Patch(
            f"{_REPLICA}._clip_whole",
            lambda of, replica, _: of(
                replica, [part for group in replica.optimizer.param_groups for part in group["params"]]
            ),
        ),
        params=_spread("zero1"),
    ),
    # The last stage takes the attention mask for the labels.
    _of_2proc(
        "pipeline: labels = attention mask", "Loss curves coincide",
        Patch(
            "training.strategies.pipeline.schedule:StagedSteps.run",
            lambda of, steps, parts, **weight: of(
                steps, [replace(part, labels=(part.labels != -100).long()) for part in parts], **weight
            ),
        ),
        params=_spread("pipeline"),
    ),
    # Every rank takes all micro-batches of every step.
    _of_2proc("missing sharding", "train: the ranks learned from", _UNSHARDED),
    # The same, in a trainer that does not count the ranks' tokens.
    _of_2proc(
        "missing sharding, trainer's check removed", "Every sample exactly once", _UNSHARDED,
        Patch(f"{_STEP}._make_step_facts", _count_as_planned),
    ),
    # The order of the samples depends on the number of ranks.
    _of_2proc(
        "another order per cell", "Same rows in the same steps",
        Patch(_PLAN, lambda of, lengths, *, seed, **more: of(lengths, seed=seed + _count_ranks() - 1, **more)),
    ),
    # One cell starts from another model than the other.
    _of_2proc("different start weights per cell", "No break between segments", Patch(_RANKS, _take_other_model)),
    # Twice the ranks take twice the global batch: 8 samples per step against 16.
    _of_2proc("different global batch per cell", "Same work in every cell", Patch(_RANKS, _enlarge_batch)),
    # A resumed cell has its weights back and an empty optimizer.
    _of_2proc(
        "optimizer state not restored", "train: is not what was saved after it was restored",
        Patch(f"{_REPLICA}.load_state", _restore_no_optimizer), scenario="resume",
    ),
    # Only rank 0 loads the checkpoint.
    _of_2proc(
        "resume on rank 0 only", "train: loaded weights have checksum",
        Patch("training.step.strategy:Strategy.restore", _restore_first), scenario="resume",
    ),
    # All cells, and the evaluation, take the attention mask for the labels.
    _show(
        "labels from the wrong column in every cell", "Starts from the base model",
        Patch("training.data.batches:Slice.collate", _ones_as_labels),
    ),
    # All cells learn from the rows in the order in which they stand.
    _show("rows not shuffled in every cell", "Steps are those asked for", Patch(_PLAN, _keep_order)),
    # The second range is the held-out rows, which the loss is later looked at on.
    _show(
        "trained on the held-out rows", "Held-out rows were held out",
        Patch("tasks.train:CellTraining.config", _train_heldout),
    ),
    # In place of a cell's checkpoint the base model is evaluated.
    _show(
        "another model evaluated", "Evaluated what was trained",
        Patch("tasks.evaluate:evaluate", lambda of, subject, rows: of(replace(subject, checkpoint=None), rows)),
    ),
    # Each step's clock also runs while a checkpoint is saved.
    _show(
        "checkpoint inside the timer", "Only steps were timed", Patch("training.loop:train_segment", _note_training),
        Patch(f"{_STEP}.close", _save_first),
    ),
    # The loader is slow; more ranks are faster because there are more loaders.
    _show(
        "data-bound run called GPU scaling", "Not data-bound",
        Patch("training.data.batches:Slice.row", lambda of, *given: (time.sleep(0.02), of(*given))[1]),
    ),
    # A timed step of several ranks leaves out half of the micro-batches.
    _show(
        "timed: half the tokens", "Timed blocks did the work",
        Patch(
            "training.probing.variants:make_micro_batches",
            lambda of, *given, world_size, **more: of(*given, world_size=world_size * min(world_size, 2), **more),
        ), scenario="timed",
    ),
    # Turns that do not suit are left out of the measurement.
    _show(
        "timed: turns left out", "Training bears out the blocks",
        Patch("tasks.measuring.turns:TimedTurns.add", _leave_out), scenario="timed",
    ),
    # The one process runs every forward pass twice.
    _show(
        "timed: loss computed twice in the baseline", "Baseline is not slowed",
        Patch("training.strategies.single.step:Single._accumulate_gradient", _compute_twice), scenario="timed",
    ),
]  # fmt: skip
BY_KEY = {exhibit.key: exhibit for exhibit in EXHIBITS}
PATCHES = {exhibit.key: exhibit.patches for exhibit in EXHIBITS}
