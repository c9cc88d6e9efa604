"""The base model's loss on the rows of the first global batch: what step 1 of every cell has to log."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np

from tasks.equivalence.reference import find_reference, has_reference
from tasks.params import Params
from tasks.process.failure import DataError, DivergedError
from tasks.records.evaluation import FirstStepFile

_log = logging.getLogger(__name__)


def compute_first_step(params: Params, *, slices: Path, base_model: Path, device: str) -> FirstStepFile:
    """Return range, epoch, num_rows and num_tokens of the first global batch, and the base model's mean loss per label.

    The loss is None, and `why_no_loss` says why, where step 1 of a right training has another one: with dropout.
    `parameter_checksum` is that of the weights which training has to start from. Beside an adapter they are rounded if
    its base is.
    """
    import torch

    from tasks.equivalence.reference.adapter import count_factors
    from training.data.augmentation import Augmentation
    from training.data.plan import plan_segment
    from training.model.adapter import round_base
    from training.model.weights import compute_parameter_checksum
    from training.workloads import find_workload

    part, train = str(params.ranges[0]), params.train
    workload = find_workload(params.workload)
    source = workload.open_slice(slices / part)
    plan = plan_segment(
        source.lengths(train.seq_len),
        seed=train.seed,
        epoch=1,
        rows=part,
        global_batch_size=train.global_batch_size,
        # Which rows are in the step does not depend on it.
        micro_batch_size=max(train.micro_batch_size, 1),
    )
    rows = np.concatenate(plan.step(1).micro_batches)
    model = workload.load_model(base_model)
    base = train.adapter.base if train.adapter else None
    round_base(model, base, device=torch.device(device))
    facts = FirstStepFile(
        range=part,
        epoch=1,
        num_rows=len(rows),
        num_tokens=int(source.num_tokens(train.seq_len)[rows].sum()),
        parameter_checksum=compute_parameter_checksum(model),
        num_trained=count_factors(model, train.adapter.model_dump()) if train.adapter else None,
        loss=None,
        why_no_loss=_explain_no_loss(params.workload, has_dropout=workload.has_dropout(model)),
    )
    del model
    if facts.why_no_loss:
        return facts
    reference = find_reference(params.workload)
    options: dict[str, Any] = {}
    if train.augment != "none":
        options["augmentation"] = Augmentation(kind=train.augment, seed=train.seed, epoch=1)
    more: dict[str, Any] = {"base": base} if base else {}
    if statistics_rows := params.count_statistics_rows(params.baseline):
        # The rows of a step come one after another, so many at once on all ranks.
        more["statistics_rows"] = statistics_rows
    samples = reference.read_rows(slices / part, rows.tolist(), seq_len=train.seq_len, **options)
    loss_sum, num_labels = reference.compute_rows_loss(base_model, samples, device=device, **more)
    expected = int(source.num_targets(train.seq_len)[rows].sum())
    assert num_labels == expected, f"{num_labels} labels predicted, the rows have {expected}"
    if not num_labels:
        raise DataError(f"{slices / part}: no row of the first global batch has a second token to predict")
    loss = loss_sum / num_labels
    if not math.isfinite(loss):
        raise DivergedError(f"the base model's loss on the first global batch is {loss}; choose another base model")
    _log.info("base model: loss %.6f on the %d rows of step 1, in fp32, row by row", loss, len(rows))
    return facts.model_copy(update={"loss": loss})


def _explain_no_loss(workload: str, *, has_dropout: bool) -> str | None:
    if has_dropout:
        return "the model has dropout, so the loss of a training step is not that of an evaluation"
    if not has_reference(workload):
        return (
            f"the workload {workload} has no second computation of its loss (tasks/equivalence/reference/{workload}.py)"
        )
    return None
