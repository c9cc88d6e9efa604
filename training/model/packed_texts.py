"""Texts that are classified, several in one sequence: layers see no padding, and each text sees itself alone.

A classifier of transformers is a base model and a head, which finds the place that it reads in every text. So the base
model runs on the pack, and the head on what came out for each text, padded: both are the model's own.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model.packed_attention import refuse_what_is_not_computed
from training.process.torch_private import is_fake

NAME = "texts"
"""What transformers knows the attention by."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    document_lengths: tuple[int, ...] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return (batch, length, heads, head_dim) for transformers; query: (batch, heads, length, head_dim).

    Each text of a pack sees itself, of a module with a window what is less than `sliding_window` tokens away, and of
    one that is causal only what stands before. `document_lengths`: of the texts, in order; without it every sequence
    is one. Neighbours of one length are computed together, unless there is dropout, which is drawn text by text.
    """
    assert attention_mask is None, "a mask would be ignored"
    refuse_what_is_not_computed(module, others)
    is_causal, heads = bool(getattr(module, "is_causal", True)), query.shape[1]
    lengths = (query.shape[2],) if document_lengths is None else document_lengths
    runs = [(length, 1) for length in lengths]
    if document_lengths is not None and not dropout:
        runs = [(length, len(list(run))) for length, run in itertools.groupby(lengths)]
    sizes = [length * number for length, number in runs]
    parts = zip(runs, query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    attended = []
    for (length, number), *of_run in parts:
        q, k, v = of_run if number == 1 else (part[0].unflatten(1, (number, -1)).transpose(0, 1) for part in of_run)
        band = _find_band(length, sliding_window, is_causal=is_causal, like=q)
        attention = F.scaled_dot_product_attention(
            q, k, v, attn_mask=band, dropout_p=dropout, is_causal=is_causal and band is None, scale=scaling,
            enable_gqa=heads != k.shape[1],
        )  # fmt: skip
        attended.append(attention.transpose(1, 2).reshape(len(query), length * number, heads, -1))
    return torch.cat(attended, dim=1), None


def _find_band(length: int, window: int | None, *, is_causal: bool, like: Tensor) -> Tensor | None:
    """Return what is added to the scores of a text of so many tokens, (length, length); None: it sees all of itself."""
    if window is None or window >= length:
        return None
    # What is kept from a rehearsal would have no numbers.
    make = _make_band.__wrapped__ if is_fake(like) else _make_band
    band = make(1 << (length - 1).bit_length(), window, is_causal, like.dtype, like.device)
    return band[:length, :length]


@lru_cache(maxsize=2)
def _make_band(length: int, window: int, is_causal: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    places = torch.arange(length, device=device)
    back = places[:, None] - places
    is_seen = (back.abs() < window) & (back >= 0 if is_causal else True)
    return torch.zeros(length, length, dtype=dtype, device=device).masked_fill(~is_seen, float("-inf"))


@contextlib.contextmanager
def pack_layers(
    model: Any, pack: Tensor, *, lengths: tuple[int, ...], boundaries: Tensor, position_ids: Tensor, num_texts: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Have the model's base run on the pack, while inside; yield what to call the model with: texts and mask, padded.

    Both (num_texts, longest) int64. What the base gives for every position of the pack, the head gets where that stands
    in its text. `pack`, (1, length) int64: the texts and, behind them, documents of padding; the rest as in Documents.
    """
    num_tokens, longest = sum(lengths[:num_texts]), max(lengths[:num_texts])
    # Of what the device holds already: nothing is copied to it.
    texts = torch.bucketize(torch.arange(num_tokens, device=pack.device), boundaries[1 : num_texts + 1], right=True)
    places = texts * longest + position_ids[0, :num_tokens]

    def unpack(packed: Tensor, fill: int = 0) -> Tensor:
        padded = packed.new_full((num_texts * longest, *packed.shape[2:]), fill)
        return padded.index_copy(0, places, packed[0, :num_tokens]).unflatten(0, (num_texts, longest))

    base: Any = model.base_model
    pooler: Any = getattr(base, "pooler", None)
    run_base, run_pooler = base.forward, getattr(pooler, "forward", None)

    def run_on_pack(*_: Any, **rest: Any) -> Any:
        for name in ("input_ids", "attention_mask", "position_ids"):
            rest.pop(name, None)
        outputs = run_base(input_ids=pack, position_ids=position_ids, document_lengths=lengths, **rest)
        outputs.last_hidden_state = unpack(outputs.last_hidden_state)
        return outputs

    with contextlib.ExitStack() as stack:
        stack.enter_context(_replace_forward(base, run_on_pack))
        if run_pooler is not None:
            stack.enter_context(_replace_forward(pooler, lambda hidden: run_pooler(unpack(hidden))))
        yield unpack(pack, model.config.pad_token_id or 0), unpack(torch.ones_like(pack))


@contextlib.contextmanager
def _replace_forward(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Have the module run so, while inside; a stage of a pipeline may have replaced it already."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
