"""What an update is, and what the loss is."""

from dataclasses import replace

from tests.museum.exhibit import show
from tests.museum.exhibits.common import count_ranks, with_mask_as_labels
from tests.mutants.patching import Patch
from tests.tasks.wrong_updates import LATE

_CURVES, _START, _UPDATES = "Loss curves coincide", "Starts from the base model", "Update equivalence"
_STEP, _REPLICA = "training.strategies.ddp:Ddp.train_step", "training.step.replica:Replica"


def _salt(of, *given):
    import numpy as np

    return np.array([hash(str(token)) % 256 for token in of(*given)])


def _average_own(of, step, micro_batches, *, num_targets, learning_rate):
    own = count_ranks() * sum(part.num_tokens for part in micro_batches)
    return of(step, micro_batches, num_targets=own, learning_rate=learning_rate)


def _average_each(of, replica, model, micro_batch, *, weight):
    of(replica, model, micro_batch, weight=count_ranks() / max(micro_batch.num_tokens, 1) / 4)


def _clip_shards(of, replica, _):
    import torch

    number, own = count_ranks(), replica._parameters
    return torch.stack([of(replica, own[shard::number]) for shard in range(number)]).norm()


def _ones_as_labels(of, *given, **more):
    part = of(*given, **more)
    return replace(part, labels=part.labels.where(part.labels == -100, 1))


EXHIBITS = [
    show(
        "salted vocabulary",
        "Token ids come from Python's hash(), which is salted per process: every rank has its own vocabulary.",
        _UPDATES, Patch("training.data.batches:Slice.row", _salt), launcher="torchrun",
    ),
    show(
        "mean of means over ranks", "Each rank averages over its own tokens and DDP averages the averages.",
        _UPDATES, Patch(_STEP, _average_own), spares_baseline=True,
    ),
    show(
        "mean of means over micro-batches",
        "Each micro-batch's mean loss counts alike, however few tokens it has; the same in every cell.",
        _UPDATES, Patch(f"{_REPLICA}.add", _average_each),
    ),
    show(
        "wrong scaling by N", "The gradient is divided by the number of ranks once too often.",
        _UPDATES,
        Patch(_STEP, lambda of, *given, num_targets, **more: of(*given, num_targets=num_targets * 2, **more)),
        spares_baseline=True,
    ),
    show(
        "shard-local clipping", "Each rank's share of the parameters is clipped by the norm of that share alone.",
        _UPDATES, Patch(f"{_REPLICA}._clip_whole", _clip_shards), spares_baseline=True,
    ),
    *(
        show(f"{key}{where}", defect, _UPDATES, LATE[key], spares_baseline=not where)
        for key, where, defect in (
            ("rank 1's gradient thrown away", "", "What one of two ranks has computed weighs nothing."),
            (
                "learning rate of 1.1 times the recorded one", " in every cell",
                "The optimizer takes a tenth more than the record says, in all cells, so that their losses agree.",
            ),
            ("no update", " in every cell", "Gradients are clipped and forgotten, and no weight changes."),
        )
    ),
    show(
        "labels from the wrong column", "The several-rank strategy takes the attention mask for the labels.",
        _CURVES,
        Patch(
            "training.strategies.ddp:Ddp._run",
            lambda of, step, parts, **weight: of(step, with_mask_as_labels(parts), **weight),
        ),
        spares_baseline=True,
    ),
    show(
        "labels from the wrong column in every cell",
        "All cells, and the evaluation, take the attention mask for the labels.",
        _START, Patch("training.data.batches:Slice.collate", _ones_as_labels),
    ),
    show(
        "loss logged 8x", "The logged loss is 8 times the loss.",
        _START,
        Patch(
            "training.record.segment:SegmentRecord._make_line",
            lambda of, *given: (lambda line: line | {"loss": 8 * line["loss"]})(of(*given)),
        ),
    ),
]  # fmt: skip
