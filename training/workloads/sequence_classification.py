"""Sequence classification: tell which class a text is of, with any sequence classifier of transformers."""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import SegmentConfig, TrainingConfig
from training.data.batches import IGNORED_LABEL, MicroBatch, Rows
from training.data.labelled_texts import LabelledTexts, list_texts, make_dummy_text, open_labelled_texts
from training.model import packed_texts
from training.model.attention_kernels import has_dropout as has_dropout
from training.model.attention_kernels import skip_mask_checks
from training.model.layers import compile_layers, evaluating
from training.model.weights import has_numbers, load_transformer, outline_transformer
from training.process.failure import UnfitModelError, is_out_of_memory

UNIT = "token"
HAS_LABELS = True
HAS_PROMPTS = False

_FEW_TOKENS = 32
_CANNOT = (AttributeError, IndexError, RuntimeError, TypeError, UnfitModelError, ValueError)
"""What comes of a model that is given a pack and does not know what one is."""


open_slice, make_dummy_micro_batch = open_labelled_texts, make_dummy_text
load_model = partial(load_transformer, "AutoModelForSequenceClassification")
outline_model = partial(outline_transformer, "AutoModelForSequenceClassification")


def augment_rows(rows: Rows, config: TrainingConfig, segment: SegmentConfig) -> Rows:
    """Return the rows as they are."""
    return rows


def can_pack(model: nn.Module, config: TrainingConfig) -> bool:
    """Return whether `prepare` would take the model for packed micro-batches; leaves it as it is."""
    whole: Any = model
    before = whole.config._attn_implementation
    try:
        _see_texts_alone(model, config)
    except UnfitModelError:
        return False
    finally:
        whole.set_attn_implementation(before)
    return True


def _see_texts_alone(model: Any, config: TrainingConfig) -> None:
    """Have attention keep the texts of a pack apart.

    Raises UnfitModelError unless each then has the logits that it has alone: tried on a long one and two of half of
    that, since where a text begins and how far attention reaches is not for its config to say.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(packed_texts.NAME, packed_texts.attend)
    if not has_numbers(model):
        model.set_attn_implementation(packed_texts.NAME)
        return
    device, rows = next(model.parameters()).device, _make_rows(config.seq_len, model.config)
    try:
        with evaluating(model):
            alone = [
                _compute_batch_logits(model, rows.collate([row], seq_len=config.seq_len).to(device)) for row in range(3)
            ]
            model.set_attn_implementation(packed_texts.NAME)
            pack = rows.collate(range(3), seq_len=config.seq_len, is_packed=True)
            if torch.allclose(_compute_batch_logits(model, pack.to(device)), torch.cat(alone), rtol=1e-4, atol=1e-4):
                return
    except _CANNOT as error:
        # What comes of a model that does not know what a pack is; having no memory is none of that.
        if is_out_of_memory(error):
            raise
    raise UnfitModelError(
        f"packing: true, but {type(model).__name__} cannot: its positions or its attention cannot begin anew in the "
        "middle of a sequence; use packing: false"
    )


def _make_rows(seq_len: int, config: Any) -> LabelledTexts:
    """Return three texts of other tokens than those that pad, the first the longest, then shorter ones.

    As long as a row may be where the config has a word of a window, however it reckons; else a few tokens tell.
    """
    has_window = any(
        value and ("window" in name or "local" in name) and "layers" not in name
        for name, value in config.to_dict().items()
    )
    seq_len = seq_len if has_window else min(seq_len, _FEW_TOKENS)
    padding = config.pad_token_id or 0
    tokens = [token for token in range(min(config.vocab_size, 50)) if token != padding]
    lengths = (seq_len, -(-seq_len // 2), -(-seq_len // 2))
    return list_texts([np.resize(np.roll(tokens, place), length) for place, length in enumerate(lengths)])


def prepare(model: nn.Module, config: TrainingConfig) -> None:
    """Have the model's layers compiled if the config says so.

    Raises UnfitModelError, in one line, for packed rows if the model cannot keep them apart, rows longer than it has
    positions for, and where there is no compiler.
    """
    if has_numbers(model):
        _require_positions(model, config.seq_len)
    if config.packing:
        _see_texts_alone(model, config)
    if config.compile:
        compile_layers(model, config.device)


def _require_positions(model: Any, seq_len: int) -> None:
    """Raise UnfitModelError unless the model takes a text of so many tokens: tried, since configs count differently."""
    most = getattr(model.config, "max_position_embeddings", None)
    if most is None:
        return
    # Padding has no position in some models, and some ask for an end of text.
    token = 0 if model.config.pad_token_id == 1 else 1
    end = getattr(model.config, "eos_token_id", None)
    ids = torch.full((1, seq_len), token, dtype=torch.int64, device=next(model.parameters()).device)
    if isinstance(end, int):
        ids[0, -1] = end
    try:
        with evaluating(model):
            _compute_logits(model, ids, torch.ones_like(ids))
    except (IndexError, RuntimeError):
        raise UnfitModelError(
            f"seq_len: {seq_len}, but {type(model).__name__} has {most} positions; use fewer tokens"
        ) from None


def loss_sum(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    scale: Tensor | None = None,
    chunk_rows: int = 1,
) -> Tensor:
    """Return the summed cross-entropy (nats) of the micro-batch's texts: () float32.

    Attention goes both ways, so that the mask is needed wherever something is padded.
    """
    logits = _compute_batch_logits(model, micro_batch)
    return F.cross_entropy(logits.float(), micro_batch.labels, ignore_index=IGNORED_LABEL, reduction="sum")


def metrics(model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
    """Return the summed loss (nats) and how many texts were put into the right class: each () float64."""
    logits = _compute_batch_logits(model, micro_batch).float()
    loss = F.cross_entropy(logits, micro_batch.labels, ignore_index=IGNORED_LABEL, reduction="sum")
    return {"loss": loss.double(), "correct": (logits.argmax(1) == micro_batch.labels).sum().double()}


def _compute_batch_logits(model: Any, micro_batch: MicroBatch) -> Tensor:
    documents = micro_batch.documents
    if documents is not None:
        with packed_texts.pack_layers(
            getattr(model, "module", model), micro_batch.input_ids, lengths=documents.lengths,
            boundaries=documents.boundaries, position_ids=documents.position_ids, num_texts=micro_batch.num_samples,
        ) as (input_ids, mask):  # fmt: skip
            logits: Tensor = model(input_ids=input_ids, attention_mask=mask).logits
        return logits
    assert micro_batch.attention_mask is not None
    is_padded = micro_batch.num_padding_tokens > 0
    assert not (is_padded and getattr(model, "module", model).config._attn_implementation == packed_texts.NAME)
    with skip_mask_checks(is_padded=is_padded):
        return _compute_logits(model, micro_batch.input_ids, micro_batch.attention_mask)


def _compute_logits(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the logits: (num_samples, num_classes)."""
    # Some models find the last token of a text by what pads it.
    padding = getattr(model, "module", model).config.pad_token_id
    if padding:
        input_ids = input_ids.masked_fill(attention_mask == 0, padding)
    logits: Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
    return logits
