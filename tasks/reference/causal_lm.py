"""Causal language modelling, one row at a time: no padding, no batch, no label array."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def loss_of_rows(model_dir: Path, rows: Iterable[np.ndarray], *, device: str) -> tuple[float, int]:
    """Return the sum of -log p(token | tokens before it) in nats, and the number of tokens predicted.

    The model runs in fp32 without dropout; the logarithm and the sum are fp64. A row of one token predicts nothing.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    model = model.to(device).eval()
    loss_sum, num_tokens = 0.0, 0
    with torch.inference_mode():
        for row in rows:
            tokens = torch.from_numpy(row.astype(np.int64)).to(device)
            if len(tokens) < 2:
                continue
            logits = model(input_ids=tokens[None, :-1], use_cache=False).logits[0].double()
            predicted = logits.gather(1, tokens[1:, None])[:, 0]
            loss_sum += float((logits.logsumexp(1) - predicted).sum())
            num_tokens += len(predicted)
    return loss_sum, num_tokens


def load_model(model_dir: Path, *, device: str) -> Any:
    """Return the base model in fp32, ready to be trained."""
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
    )
    return model.to(device).train()


def loss_sum(model: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the summed loss (nats) over a micro-batch's labels; -100 is no label."""
    logits = model(input_ids=input_ids, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
