"""Attention masks that are made without looking at what is padded: on CUDA each look would wait for the device.

transformers reads the mask or the positions of every micro-batch in its forward pass, to find out whether there is
anything to mask. Here that follows from how rows are laid out: padding stands last.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor


@contextlib.contextmanager
def skip_mask_checks(*, is_padded: bool) -> Iterator[None]:
    """Have transformers make the masks of its "sdpa" attention so, while inside; `is_padded`: if anything is.

    The model has to be given an attention mask: without one it looks at the positions instead.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] = _make_padded_mask if is_padded else _make_unpadded_mask
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]


def _make_padded_mask(
    *, attention_mask: Tensor | None, allow_is_causal_skip: bool, allow_is_bidirectional_skip: bool = False, **rest: Any
) -> Tensor | None:
    # What looks back only sees no padding that stands last.
    if allow_is_causal_skip or attention_mask is None:
        return _make_unpadded_mask(
            allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip, **rest
        )
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(attention_mask=attention_mask, allow_is_causal_skip=False, **rest)


def _make_unpadded_mask(*, attention_mask: Tensor | None = None, **rest: Any) -> Tensor | None:
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(attention_mask=None, **rest)
