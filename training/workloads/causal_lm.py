"""Causal language modelling: predict the next token of every position, as transformers' own models do."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.data import IGNORED_LABEL, MicroBatch
from training.weights import load_weights


def load_model(model_dir: Path, *, checkpoint: Path | None = None) -> nn.Module:
    """Return the model of a transformers folder in fp32 on the CPU, or with the weights of a checkpoint file.

    Raises BadCheckpointError if the checkpoint is not loadable or is not one of this model.
    """
    # Here, not above: several seconds that the data and the plan can do without.
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        model_dir,
        # transformers 5 would else load bf16 weights as bf16, which lose small updates to rounding.
        dtype=torch.float32,
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_cache=False,
    )
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model


def has_dropout(model: nn.Module) -> bool:
    """Return True if the model's config or one of its modules has a dropout rate above 0."""
    config: Any = model.config
    rates = [value for name, value in config.to_dict().items() if "drop" in name]
    rates += [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def loss_sum(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """Return the summed cross-entropy (nats) of the micro-batch's label tokens: () float32.

    No attention mask is passed: attention is causal and the padding stands last, so the fast kernels stay open.
    """
    logits = model(input_ids=micro_batch.input_ids, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), micro_batch.labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
