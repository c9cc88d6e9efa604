"""The defects that are trained, one for each gate and each refusal of the trainer's; imports nothing of the product.

Each is made by wrong functions of our own trainer or pipeline. What others leave in the records: records.py.
"""

import os
import time
from dataclasses import dataclass, replace
from typing import Any, Literal
from unittest import mock

from tests.mutants.patching import Patch

_PARTS, _STEP = "training.loop:make_micro_batches", "training.record.window:Window"
_RANKS, _REPLICA, _PLAN = (
    "tasks.ranks.cell_ranks:make_ranks_config", "training.step.replica:Replica", "training.data.plan:plan_segment"
)  # fmt: skip
_training = []
"""Launch, strategy and record of the segment that is trained."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One defect."""

    key: str
    defect: str
    """What is wrong, in one plain sentence."""
    caught_by: str
    """The gate that has to fail, or `STAGE: WORDS` if that stage has to refuse with these words."""
    patches: tuple[Patch, ...]
    """What makes it, and takes out a check inside the trainer, so that the gates stand alone."""
    scenario: Literal["train", "resume", "timed"] = "train"
    """What is run: both cells from nothing; a second range of 2proc after the first one; or the measurement alone."""
    params: tuple[tuple[str, Any], ...] = ()
    """Changes to params.yaml, by dotted key."""
    spares_baseline: bool = False
    """Whether one process does exactly what it does without the defect, so that its run can be shared."""


def _show(key, defect, caught_by, *patches, **more):
    return Exhibit(key=key, defect=defect, caught_by=caught_by, patches=patches, **more)


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


def _synchronise_all(of, step, micro_batches, *, weight):
    return [of(step, [part], weight=weight) for part in micro_batches][-1]


def _clip_own(of, replica, _):
    return of(replica, [part for group in replica.optimizer.param_groups for part in group["params"]])


def _take_mask_as_labels(of, steps, parts, **weight):
    return of(steps, [replace(part, labels=(part.labels != -100).long()) for part in parts], **weight)


def _ones_as_labels(of, *given, **more):
    part = of(*given, **more)
    return replace(part, labels=part.labels.where(part.labels == -100, 1))


def _count_as_planned(of, window, step, planned, rate, ranks, *rest):
    tokens, targets = (int(counted) for counted in ranks[:, 5:7].sum(axis=0))
    return of(window, step, replace(planned, num_tokens=tokens, num_targets=targets), rate, ranks, *rest)


def _shuffle_by_ranks(of, lengths, *, seed, **more):
    return of(lengths, seed=seed + _count_ranks() - 1, **more)


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


def _deal_half(of, *given, world_size, **more):
    return of(*given, world_size=world_size * min(world_size, 2), **more)


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
    _of_2proc(
        "raw module", "The bare module is trained instead of its DDP wrapper: no gradient is ever exchanged.",
        "train: the ranks hold different parameters", _RAW,
    ),
    _of_2proc(
        "raw module, trainer's check removed", "The same, in a trainer that does not compare the ranks' parameters.",
        "Same parameters on all ranks", _RAW, Patch("training.loop:_require_same_state", lambda *_: None),
    ),
    _of_2proc(
        "weights copied in place of gradients",
        "No gradient is exchanged; all ranks copy rank 0's weights after each step, so that weights agree.",
        "train: the ranks hold different optimizer states", _RAW, Patch(f"{_REPLICA}.optimizer_step", _copy_weights),
    ),
    _of_2proc(
        "no no_sync", "Gradients are exchanged on every micro-batch: right weights, needless communication.",
        "Gradients were synchronised", Patch("training.strategies.ddp.step:Ddp._accumulate_gradient", _synchronise_all),
    ),
    _of_2proc(
        "zero1: shares clipped one by one", "Each rank clips the gradient of its own share by the norm of that share.",
        "Update equivalence", Patch(f"{_REPLICA}._clip_whole", _clip_own), params=_spread("zero1"),
    ),
    _of_2proc(
        "pipeline: labels = attention mask", "The last stage takes the attention mask for the labels.",
        "Loss curves coincide", Patch("training.strategies.pipeline.schedule:StagedSteps.run", _take_mask_as_labels),
        params=_spread("pipeline"),
    ),
    _of_2proc(
        "missing sharding", "Every rank takes all micro-batches of every step.",
        "train: the ranks learned from", _UNSHARDED,
    ),
    _of_2proc(
        "missing sharding, trainer's check removed", "The same, in a trainer that does not count the ranks' tokens.",
        "Every sample exactly once", _UNSHARDED, Patch(f"{_STEP}._make_step_facts", _count_as_planned),
    ),
    _of_2proc(
        "another order per cell", "The order of the samples depends on the number of ranks.",
        "Same rows in the same steps", Patch(_PLAN, _shuffle_by_ranks),
    ),
    _of_2proc(
        "different start weights per cell", "One cell starts from another model than the other.",
        "No break between segments", Patch(_RANKS, _take_other_model),
    ),
    _of_2proc(
        "different global batch per cell",
        "Twice the ranks take twice the global batch: 8 samples per step against 16.",
        "Same work in every cell", Patch(_RANKS, _enlarge_batch),
    ),
    _of_2proc(
        "optimizer state not restored", "A resumed cell has its weights back and an empty optimizer.",
        "train: is not what was saved after it was restored", Patch(f"{_REPLICA}.load_state", _restore_no_optimizer),
        scenario="resume",
    ),
    _of_2proc(
        "resume on rank 0 only", "Only rank 0 loads the checkpoint.",
        "train: loaded weights have checksum", Patch("training.step.strategy:Strategy.restore", _restore_first),
        scenario="resume",
    ),
    _show(
        "labels from the wrong column in every cell",
        "All cells, and the evaluation, take the attention mask for the labels.",
        "Starts from the base model", Patch("training.data.batches:Slice.collate", _ones_as_labels),
    ),
    _show(
        "rows not shuffled in every cell", "All cells learn from the rows in the order in which they stand.",
        "Steps are those asked for", Patch(_PLAN, _keep_order),
    ),
    _show(
        "trained on the held-out rows",
        "The second range is the held-out rows, which the loss is later looked at on.",
        "Held-out rows were held out", Patch("tasks.train:CellTraining.config", _train_heldout),
    ),
    _show(
        "another model evaluated", "In place of a cell's checkpoint the base model is evaluated.",
        "Evaluated what was trained",
        Patch("tasks.evaluate:evaluate", lambda of, subject, rows: of(replace(subject, checkpoint=None), rows)),
    ),
    _show(
        "checkpoint inside the timer", "Each step's clock also runs while a checkpoint is saved.",
        "Only steps were timed", Patch("training.loop:train_segment", _note_training),
        Patch(f"{_STEP}.close", _save_first),
    ),
    _show(
        "data-bound run called GPU scaling",
        "The loader is slow; more ranks are faster because there are more loaders.",
        "Not data-bound",
        Patch("training.data.batches:Slice.row", lambda of, *given: (time.sleep(0.02), of(*given))[1]),
    ),
    _show(
        "timed: half the tokens", "A timed step of several ranks leaves out half of the micro-batches.",
        "Timed blocks did the work", Patch("training.probing.variants:make_micro_batches", _deal_half),
        scenario="timed",
    ),
    _show(
        "timed: turns left out", "Turns that do not suit are left out of the measurement.",
        "Training bears out the blocks", Patch("tasks.measuring.turns:TimedTurns.add", _leave_out), scenario="timed",
    ),
    _show(
        "timed: loss computed twice in the baseline", "The one process runs every forward pass twice.",
        "Baseline is not slowed", Patch("training.strategies.single.step:Single._accumulate_gradient", _compute_twice),
        scenario="timed",
    ),
]  # fmt: skip
BY_KEY = {exhibit.key: exhibit for exhibit in EXHIBITS}
PATCHES = {exhibit.key: list(exhibit.patches) for exhibit in EXHIBITS}
