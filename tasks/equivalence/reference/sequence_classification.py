"""Sequence classification, one text at a time: no padding, no mask, no batch."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging

from training.data.batches import MicroBatch

_PACKED = "reference-texts"


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


def compute_rows_loss(model: Any, rows: Iterable[tuple[np.ndarray, int]]) -> tuple[float, int]:
    """Return the sum of -log p(class | text) in nats, and the number of texts.

    The model runs in fp32, which is not to be in training; the logarithm and the sum are fp64.
    """
    loss_sum, num_texts = 0.0, 0
    with torch.inference_mode():
        for text, label in rows:
            tokens = torch.from_numpy(text.astype(np.int64)).to(model.device)
            logits = model(tokens[None]).logits[0].double()
            loss_sum += float(logits.logsumexp(0) - logits[label])
            num_texts += 1
    return loss_sum, num_texts


def load_model(model_dir: Path, *, device: str, is_packed: bool = False) -> Any:
    """Return the base model in fp32, ready to be trained; packed: on several texts in one sequence."""
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    model = (
        AutoModelForSequenceClassification.from_pretrained(
            model_dir, config=config, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
        .to(device)
        .train()
    )
    if is_packed:
        AttentionInterface.register(_PACKED, _attend_packed)
        model.set_attn_implementation(_PACKED)
    return model


def loss_sum(model: Any, micro_batch: MicroBatch, *, chunk_rows: int) -> torch.Tensor:
    """Return the summed loss (nats) over a micro-batch's classes; -100 is none."""
    labels, padding = micro_batch.labels, model.config.pad_token_id or 0
    if micro_batch.documents is not None:
        lengths = list(micro_batch.documents.lengths)
        texts = micro_batch.input_ids[0].split(lengths)[: len(labels)]
        inputs = pad_sequence(list(texts), batch_first=True, padding_value=padding)
        mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        logits = _compute_packed_logits(model, micro_batch, lengths, inputs, mask)
    else:
        given = micro_batch.attention_mask
        assert given is not None
        mask = given
        inputs = torch.where(mask.bool(), micro_batch.input_ids, torch.full_like(micro_batch.input_ids, padding))
        logits = model(inputs, attention_mask=mask).logits
    # Looked for on the host: how many there are is a shape.
    has_label = (labels.cpu() != -100).nonzero().flatten().to(labels.device)
    chances = logits.float()[has_label].log_softmax(1)
    return -chances[torch.arange(len(chances), device=chances.device), labels[has_label]].sum()


def _compute_packed_logits(
    model: Any, micro_batch: MicroBatch, lengths: list[int], inputs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the logits of the texts of a pack: the layers have them one after another, the head one below another."""
    num_texts = len(mask)
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(inputs.device)

    def spread(packed: torch.Tensor) -> torch.Tensor:
        return pad_sequence(list(packed[0].split(lengths)[:num_texts]), batch_first=True)

    def give_pack(_: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, Any]:
        named |= {"input_ids": micro_batch.input_ids, "position_ids": positions, "lengths": lengths}
        return (), {**named, "attention_mask": None}

    def take_texts(_: Any, arguments: Any, outputs: Any) -> Any:
        outputs.last_hidden_state = spread(outputs.last_hidden_state)
        return outputs

    base = model.base_model
    hooks = [base.register_forward_pre_hook(give_pack, with_kwargs=True), base.register_forward_hook(take_texts)]
    if getattr(base, "pooler", None) is not None:
        hooks.append(base.pooler.register_forward_pre_hook(lambda _, arguments: (spread(arguments[0]),)))
    try:
        logits: torch.Tensor = model(inputs, attention_mask=mask).logits
        return logits
    finally:
        for hook in hooks:
            hook.remove()


def _attend_packed(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *,
    dropout: float = 0.0, scaling: float | None = None, sliding_window: int | None = None,
    lengths: list[int] | None = None, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Return each text's own attention; tensors are (1, heads, length, head_dim)."""
    results, start = [], 0
    for length in lengths or [query.shape[2]]:
        q, k, v = (part[:, :, start : start + length] for part in (query, key, value))
        ahead = torch.arange(length, device=q.device)[None] - torch.arange(length, device=q.device)[:, None]
        seen = ahead.abs() < (sliding_window or length)
        if getattr(module, "is_causal", True):
            seen &= ahead <= 0
        results.append(
            torch.nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=None if bool(seen.all()) else seen,
                scale=scaling,
                dropout_p=dropout,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
        start += length
    return torch.cat(results, dim=2).transpose(1, 2).contiguous(), None
