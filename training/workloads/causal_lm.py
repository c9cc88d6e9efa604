"""Causal language modelling: predict the next token of every position, as transformers' own models do."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import SegmentConfig, TrainingConfig
from training.data.batches import Documents, MicroBatch, Rows
from training.data.batches import make_dummy_micro_batch as make_dummy_micro_batch
from training.data.batches import open_slice as open_slice
from training.model import packed_attention
from training.model.attention_kernels import has_dropout as has_dropout
from training.model.attention_kernels import has_varlen_kernel, skip_mask_checks, suits_varlen_kernel
from training.model.layers import compile_layers, evaluating, is_compiled
from training.model.linear_loss import DEFAULT_CHUNK_ROWS, linear_cross_entropy
from training.model.weights import has_numbers, load_transformer, outline_transformer
from training.process.failure import UnfitModelError

UNIT = "token"
HAS_LABELS = False
HAS_PROMPTS = False


def _cache_per_model(ask: Callable[[nn.Module], bool]) -> Callable[[nn.Module], bool]:
    """Return the same question, whose answer is kept for every model that it was asked of."""
    answers: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()

    @functools.wraps(ask)
    def answer(model: nn.Module) -> bool:
        if model not in answers:
            answers[model] = ask(model)
        return answers[model]

    return answer


load_model = partial(load_transformer, "AutoModelForCausalLM")
outline_model = partial(outline_transformer, "AutoModelForCausalLM")
_has_dropout = _cache_per_model(has_dropout)
_suits_varlen_kernel = _cache_per_model(suits_varlen_kernel)


def augment_rows(rows: Rows, config: TrainingConfig, segment: SegmentConfig) -> Rows:
    """Return the rows as they are."""
    return rows


def metrics(model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
    """Return the loss and nothing else."""
    return {"loss": loss_sum(model, micro_batch)}


def prepare(model: nn.Module, config: TrainingConfig) -> None:
    """Have the model take the micro-batches that the config asks for, and compile its layers if it says so.

    Raises UnfitModelError, in one line, for packed ones if each row would not have the loss that it has alone; and
    where there is no compiler.
    """
    if config.packing:
        _attend_within_documents(model)
        _require_separate_documents(model, config)
    in_one_call = _packs_in_one_call(model, torch.device(config.device), is_16_bit=config.precision != "fp32")
    if config.compile and config.packing and not in_one_call:
        raise UnfitModelError(
            "compile: true with packing: true, but on a CPU, in fp32, before Ampere and with "
            "dropout packed attention runs document by document, which would be compiled anew for every number of "
            "them; use one of the two"
        )
    # Asked before the model is compiled and on its device: what is tried is neither compiled for nor waited for there.
    _has_plain_head(model)
    if config.compile:
        compile_layers(model, config.device)


def _packs_in_one_call(model: nn.Module, device: torch.device, *, is_16_bit: bool) -> bool:
    """Return whether attention takes all documents of a pack at once, whatever their number."""
    return has_varlen_kernel(device, is_16_bit=is_16_bit) and _suits_varlen_kernel(model)


def can_pack(model: nn.Module, config: TrainingConfig) -> bool:
    """Return whether `prepare` would take the model for packed micro-batches; leaves it as it is."""
    whole: Any = model
    before = whole.config._attn_implementation
    try:
        _attend_within_documents(model)
        _require_separate_documents(model, config)
    except UnfitModelError:
        return False
    finally:
        whole.set_attn_implementation(before)
    return True


def _attend_within_documents(model: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(packed_attention.NAME, packed_attention.attend)
    model.set_attn_implementation(packed_attention.NAME)


def loss_sum(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    scale: Tensor | None = None,
    chunk_rows: int = DEFAULT_CHUNK_ROWS,
) -> Tensor:
    """Return the summed cross-entropy (nats) of the micro-batch's label tokens: () float32.

    Nothing is masked: attention is causal and the padding stands last, so the fast kernels stay open. Only
    positions with a label go through the head, `chunk_rows` of them at a time where the head is a plain matrix; `scale`
    as in linear_cross_entropy.
    """
    whole: Any = getattr(model, "module", model)
    targets = select_targets(micro_batch)
    if not _has_plain_head(whole):
        return F.cross_entropy(compute_logits(model, micro_batch).float(), targets, reduction="sum")
    with _bypass_head(whole) as head:
        hidden = compute_logits(model, micro_batch)
    return linear_cross_entropy(
        hidden, head.weight, targets,
        chunk_rows=chunk_rows, scale=scale, is_compiled=hidden.is_cuda and is_compiled(whole),
    )  # fmt: skip


def select_targets(micro_batch: MicroBatch) -> Tensor:
    """Return the tokens that are to be predicted: (num_targets,) int64."""
    return micro_batch.labels.flatten().index_select(0, micro_batch.label_places)


def compute_logits(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """Return what the model says at every position with a label: (num_targets, vocab_size)."""
    whole: Any = getattr(model, "module", model)
    with skip_mask_checks(is_padded=False):
        logits: Tensor = model(
            input_ids=micro_batch.input_ids, use_cache=False, **_make_attention_inputs(whole, micro_batch)
        ).logits
    return logits.flatten(0, 1).index_select(0, micro_batch.label_places)


def _make_attention_inputs(model: Any, micro_batch: MicroBatch) -> dict[str, Any]:
    """Return what attention is to know, which the models of transformers hand on to it."""
    documents = micro_batch.documents
    if documents is None:
        # Without a mask the models would look for documents in the positions.
        return {"attention_mask": torch.ones_like(micro_batch.input_ids)}
    where: dict[str, Any] = {"position_ids": documents.position_ids}
    device, is_16_bit = micro_batch.input_ids.device, torch.is_autocast_enabled("cuda")
    if _packs_in_one_call(model, device, is_16_bit=is_16_bit):
        return where | {
            "document_boundaries": documents.boundaries,
            "longest_document": documents.longest,
            "takes_groups": packed_attention.supports_grouped_heads(),
        }
    return where | {"document_lengths": documents.lengths}


@contextlib.contextmanager
def _bypass_head(model: Any) -> Iterator[nn.Linear]:
    """Have the model give what it would put through its head, while inside; yield the head."""
    head: nn.Linear = model.get_output_embeddings()
    head.forward = lambda hidden: hidden  # type: ignore[method-assign, assignment]
    try:
        yield head
    finally:
        del head.forward


@_cache_per_model
def _has_plain_head(model: Any) -> bool:
    """Return whether the logits are the last hidden state times a matrix and nothing else.

    Some architectures scale or cap them. That is not guessed from names but tried.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return False
    if not has_numbers(model):
        return True
    input_ids = torch.arange(1, 9, device=model.device)[None] % model.config.vocab_size
    with evaluating(model):
        logits = model(input_ids=input_ids, use_cache=False).logits
        with _bypass_head(model) as head:
            hidden = model(input_ids=input_ids, use_cache=False).logits
        largest = float(logits.nan_to_num().abs().max())  # of weights that diverged some logits are no number
        return torch.allclose(logits, F.linear(hidden, head.weight), rtol=1e-4, atol=1e-5 * largest)


def _require_separate_documents(model: Any, config: TrainingConfig) -> None:
    """Raise UnfitModelError unless rows in one sequence have the hidden states that each has alone: tried on two."""
    first, second = (torch.arange(start, start + 8, device=model.device) % model.config.vocab_size for start in (1, 5))
    why = "its positions or its attention cannot begin anew in the middle of a sequence"
    window = getattr(model.config, "sliding_window", None)
    if window is not None and getattr(model.config, "use_sliding_window", True) and window < config.seq_len:
        why = f"its attention has a window of {window} tokens, fewer than seq_len"
    elif not has_numbers(model):
        return
    else:
        documents = Documents(
            lengths=(8, 8), longest=8, boundaries=torch.tensor([0, 8, 16], dtype=torch.int32),
            position_ids=torch.arange(8, device=model.device).repeat(2)[None],
        )  # fmt: skip
        with evaluating(model), contextlib.suppress(TypeError):
            alone = [model(input_ids=row[None], use_cache=False).logits for row in (first, second)]
            together = model(
                input_ids=torch.cat([first, second])[None], use_cache=False,
                position_ids=documents.position_ids, document_lengths=documents.lengths,
            ).logits  # fmt: skip
            if torch.allclose(together, torch.cat(alone, dim=1), rtol=1e-4, atol=1e-4):
                return
    raise UnfitModelError(f"packing: true, but {type(model).__name__} cannot: {why}; use packing: false")
