"""The base model's loss on the rows of the first global batch: what step 1 of every cell has to log."""

import importlib
import importlib.util
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np

from tasks.params import Params
from tasks.stage.failure import DataError, DivergedError

_log = logging.getLogger(__name__)


def first_step(params: Params, *, slices: Path, base_model: Path, device: str) -> dict[str, Any]:
    """Return range, epoch, num_rows and num_tokens of the first global batch, and the base model's mean loss per token.

    The loss is None, and `why_no_loss` says why, where step 1 of a right training has another one: with dropout.
    `parameter_checksum` is that of the weights which training has to start from.
    """
    from training.plan import plan_segment
    from training.weights import parameter_checksum

    part, train = str(params.ranges[0]), params.train
    tokens, offsets = (
        np.load(slices / part / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("tokens", "offsets")
    )
    lengths = np.minimum(np.diff(offsets), train.seq_len)
    plan = plan_segment(
        lengths,
        seed=train.seed,
        epoch=1,
        rows=part,
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
    )
    rows = np.concatenate(plan.step(1).micro_batches)
    workload: Any = importlib.import_module(f"training.workloads.{params.workload}")
    model = workload.load_model(base_model)
    facts = {
        "range": part,
        "epoch": 1,
        "num_rows": len(rows),
        "num_tokens": int(np.maximum(lengths[rows] - 1, 0).sum()),
        "parameter_checksum": parameter_checksum(model),
        "loss": None,
        "why_no_loss": _why_no_loss(params.workload, has_dropout=workload.has_dropout(model)),
    }
    del model
    if facts["why_no_loss"]:
        return facts
    reference: Any = importlib.import_module(f"tasks.reference.{params.workload}")
    texts = (tokens[offsets[row] : offsets[row] + lengths[row]] for row in rows.tolist())
    loss_sum, num_tokens = reference.loss_of_rows(base_model, texts, device=device)
    assert num_tokens == facts["num_tokens"], f"{num_tokens} tokens predicted, the rows have {facts['num_tokens']}"
    if not num_tokens:
        raise DataError(f"{slices / part}: no row of the first global batch has a second token to predict")
    loss = loss_sum / num_tokens
    if not math.isfinite(loss):
        raise DivergedError(f"the base model's loss on the first global batch is {loss}; choose another base model")
    _log.info("base model: loss %.6f on the %d rows of step 1, in fp32, row by row", loss, len(rows))
    return {**facts, "loss": loss}


def _why_no_loss(workload: str, *, has_dropout: bool) -> str | None:
    if has_dropout:
        return "the model has dropout, so the loss of a training step is not that of an evaluation"
    if importlib.util.find_spec(f"tasks.reference.{workload}") is None:
        return f"the workload {workload} has no second computation of its loss (tasks/reference/{workload}.py)"
    return None
