"""Sequence classification, one text at a time: no padding, no mask, no batch."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging

from training.data.batches import MicroBatch


def read_rows(folder: Path, rows: Iterable[int], *, seq_len: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield tokens and class of these rows of a slice; a text that is too long loses tokens before its last."""
    tokens, offsets, labels = (
        np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("tokens", "offsets", "labels")
    )
    for row in rows:
        text = tokens[offsets[row] : offsets[row + 1]]
        if len(text) > seq_len:
            text = np.concatenate([text[: seq_len - 1], text[-1:]])
        yield text, int(labels[row])


def compute_rows_loss(model_dir: Path, rows: Iterable[tuple[np.ndarray, int]], *, device: str) -> tuple[float, int]:
    """Return the sum of -log p(class | text) in nats, and the number of texts.

    The model runs in fp32 without dropout; the logarithm and the sum are fp64.
    """
    model: Any = _load_classifier(model_dir).to(device).eval()
    loss_sum, num_texts = 0.0, 0
    with torch.inference_mode():
        for text, label in rows:
            tokens = torch.from_numpy(text.astype(np.int64)).to(device)
            logits = model(tokens[None]).logits[0].double()
            loss_sum += float(logits.logsumexp(0) - logits[label])
            num_texts += 1
    return loss_sum, num_texts


def load_model(model_dir: Path, *, device: str, is_packed: bool = False) -> Any:
    """Return the base model in fp32, ready to be trained."""
    assert not is_packed, "texts that are classified are not packed"
    logging.disable_progress_bar()
    return _load_classifier(model_dir).to(device).train()


def loss_sum(model: Any, micro_batch: MicroBatch, *, chunk_rows: int) -> torch.Tensor:
    """Return the summed loss (nats) over a micro-batch's classes; -100 is none."""
    mask, labels = micro_batch.attention_mask, micro_batch.labels
    assert mask is not None
    padding = torch.full_like(micro_batch.input_ids, model.config.pad_token_id or 0)
    inputs = torch.where(mask.bool(), micro_batch.input_ids, padding)
    # Looked for on the host: how many there are is a shape.
    has_label = (labels.cpu() != -100).nonzero().flatten().to(labels.device)
    logits = model(inputs, attention_mask=mask).logits.float()[has_label]
    chances = logits.log_softmax(1)
    return -chances[torch.arange(len(chances), device=chances.device), labels[has_label]].sum()


def _load_classifier(model_dir: Path) -> Any:
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    return AutoModelForSequenceClassification.from_pretrained(
        model_dir, config=config, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
