"""Instruction tuning: learn to answer a prompt as a language model does, from the tokens of the response alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from training.data import batches
from training.data.batches import MicroBatch, Slice
from training.data.batches import make_dummy_micro_batch as make_dummy_micro_batch
from training.workloads import causal_lm
from training.workloads.causal_lm import augment_rows as augment_rows
from training.workloads.causal_lm import can_pack as can_pack
from training.workloads.causal_lm import has_dropout as has_dropout
from training.workloads.causal_lm import load_model as load_model
from training.workloads.causal_lm import loss_sum as loss_sum
from training.workloads.causal_lm import outline_model as outline_model
from training.workloads.causal_lm import prepare as prepare

UNIT = "token"
HAS_LABELS = False
HAS_PROMPTS = True


def open_slice(folder: Path) -> Slice:
    """Return the rows of a folder that has prompts.npy, the tokens of each prompt, beside the tokens.

    A prompt is read and not learned: what weighs in the loss is the response and the token that ends it. Raises
    as batches.open_slice does.
    """
    rows = batches.open_slice(folder)
    (prompts,) = batches.opened_arrays(folder, "prompts")
    lengths = np.diff(rows.offsets)
    if len(prompts) != len(rows) or (prompts < 1).any() or (prompts >= lengths).any():
        raise ValueError(
            f"{folder}: {len(prompts)} prompts and {len(rows)} rows, or a prompt that is empty or not followed by a "
            "response; the slice stage makes them anew"
        )
    return replace(rows, num_given=prompts)


def metrics(model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
    """Return the summed loss (nats), and how many tokens of the responses were the likeliest: each () float64."""
    logits, targets = causal_lm.compute_logits(model, micro_batch).float(), causal_lm.select_targets(micro_batch)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    return {"loss": loss.double(), "correct_tokens": (logits.argmax(1) == targets).sum().double()}
