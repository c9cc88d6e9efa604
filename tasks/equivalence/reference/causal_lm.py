"""Causal language modelling, one row at a time: no padding, no batch, no label array."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils import logging

from training.data.batches import MicroBatch

_PACKED = "reference-packed"


def read_rows(folder: Path, rows: Iterable[int], *, seq_len: int) -> Iterator[np.ndarray]:
    """Yield the tokens of these rows of a slice, cut to `seq_len`, for compute_rows_loss."""
    tokens, offsets = (
        np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("tokens", "offsets")
    )
    for row in rows:
        yield tokens[offsets[row] : min(offsets[row + 1], offsets[row] + seq_len)]


def compute_rows_loss(model: Any, rows: Iterable[np.ndarray]) -> tuple[float, int]:
    """Return the sum of -log p(token | tokens before it) in nats, and the number of tokens predicted.

    A row of one token predicts nothing.
    """
    return compute_loss_behind(model, ((row, 1) for row in rows))


def compute_loss_behind(model: Any, rows: Iterable[tuple[np.ndarray, int]]) -> tuple[float, int]:
    """Return the same for the tokens of each row behind its first ones, of which it has so many, at least 1.

    The model runs in fp32, which is not to be in training; the logarithm and the sum are fp64.
    """
    loss_sum, num_tokens = 0.0, 0
    with torch.inference_mode():
        for row, num_first in rows:
            tokens = torch.from_numpy(row.astype(np.int64)).to(model.device)
            if len(tokens) <= num_first:
                continue
            logits = model(input_ids=tokens[None, :-1], use_cache=False).logits[0, num_first - 1 :].double()
            predicted = logits.gather(1, tokens[num_first:, None])[:, 0]
            loss_sum += float((logits.logsumexp(1) - predicted).sum())
            num_tokens += len(predicted)
    return loss_sum, num_tokens


def load_model(model_dir: Path, *, device: str, is_packed: bool = False) -> Any:
    """Return the base model in fp32, ready to be trained; packed: on several documents in one sequence."""
    logging.disable_progress_bar()
    AttentionInterface.register(_PACKED, _attend_packed)
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_dir,
        dtype=torch.float32,
        attn_implementation=_PACKED if is_packed else None,
        local_files_only=True,
        trust_remote_code=False,
    )
    return model.to(device).train()


def loss_sum(model: Any, micro_batch: MicroBatch, *, chunk_rows: int) -> torch.Tensor:
    """Return the summed loss (nats) over a micro-batch's labels; -100 is no label.

    Where the head is a matrix, so many labels at a time: in 16 bit each chunk's gradients are rounded by themselves.
    """
    inputs: dict[str, Any] = {"input_ids": micro_batch.input_ids, "use_cache": False}
    if micro_batch.documents is not None:
        lengths = micro_batch.documents.lengths
        positions = torch.cat([torch.arange(length) for length in lengths])
        inputs |= {"position_ids": positions[None].to(model.device), "lengths": lengths}
    # Looked for on the host: how many there are is a shape.
    has_label = (micro_batch.labels.flatten().cpu() != -100).nonzero().flatten().to(model.device)
    labels = micro_batch.labels.flatten()[has_label]
    if not _ends_with_matrix(model):
        logits = model(**inputs).logits.flatten(0, 1)[has_label].float()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    hidden = model.base_model(**inputs).last_hidden_state.flatten(0, 1)[has_label]
    matrix = model.get_output_embeddings().weight
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    parts = list(zip(hidden.split(chunk_rows), labels.split(chunk_rows), strict=True))
    losses = []
    with torch.autocast(kind, enabled=False):
        # The last first: a backward begins with what was computed last, and so adds from the first one on.
        for part, labels_of_part in reversed(parts[1:]):
            losses.append(checkpoint(_compute_chunk_loss, part, matrix, labels_of_part, dtype, use_reentrant=False))
        # A backward would compute the first one again at once, when nothing of the layers is free yet: it may as well
        # stay, and takes no more memory.
        losses += [_compute_chunk_loss(part, matrix, labels_of_part, dtype) for part, labels_of_part in parts[:1]]
    return torch.stack(losses).sum()


def _compute_chunk_loss(
    hidden: torch.Tensor, matrix: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the loss, whose gradient is written out: softmax - 1 at the label."""
    logits = torch.nn.functional.linear(hidden.to(dtype), matrix.to(dtype)).float()
    loss = -logits.detach().log_softmax(1).gather(1, labels[:, None]).sum()
    gradient = logits.detach().softmax(1)
    gradient[torch.arange(len(labels)), labels] -= 1
    product = (logits * gradient).sum()
    return product + (loss - product.detach())


def _ends_with_matrix(model: Any) -> bool:
    """Return whether the logits are the last hidden state times a matrix; tried once."""
    if not hasattr(model, "ends_with_matrix"):
        head, tokens = model.get_output_embeddings(), torch.arange(5, device=model.device)[None]
        # Of every card that there is, it would take memory by default.
        cards = [model.device] if model.device.type == "cuda" else []
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False), torch.random.fork_rng(devices=cards):
            is_training = model.training
            model.eval()
            logits, hidden = model(tokens).logits, model.base_model(tokens).last_hidden_state
            model.train(is_training)
            product = torch.nn.functional.linear(hidden, head.weight)
        model.ends_with_matrix = getattr(head, "bias", None) is None and torch.allclose(
            logits, product, rtol=1e-4, atol=1e-5 * float(logits.abs().max())
        )
    return bool(model.ends_with_matrix)


def _attend_packed(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *,
    dropout: float = 0.0, scaling: float | None = None, lengths: tuple[int, ...] | None = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Return each document's own attention; tensors are (1, heads, length, head_dim)."""
    results, start = [], 0
    for length in lengths or [query.shape[2]]:
        q, k, v = (part[:, :, start : start + length] for part in (query, key, value))
        results.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=query.shape[1] != key.shape[1]
            )
        )
        start += length
    return torch.cat(results, dim=2).transpose(1, 2).contiguous(), None
