"""Instruction tuning, one row at a time: no padding, no batch, no label array."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.equivalence.reference.causal_lm import compute_loss_behind
from tasks.equivalence.reference.causal_lm import load_model as load_model
from tasks.equivalence.reference.causal_lm import loss_sum as loss_sum
from tasks.equivalence.reference.causal_lm import read_rows as read_texts


def read_rows(folder: Path, rows: Iterable[int], *, seq_len: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the tokens of these rows of a slice, cut to `seq_len`, and how many of them are the prompt."""
    prompts, chosen = np.load(folder / "prompts.npy", mmap_mode="r", allow_pickle=False), list(rows)
    for row, tokens in zip(chosen, read_texts(folder, chosen, seq_len=seq_len), strict=True):
        yield tokens, int(prompts[row])


def compute_rows_loss(model: Any, rows: Iterable[tuple[np.ndarray, int]]) -> tuple[float, int]:
    """Return the sum of -log p(token | tokens before it) in nats over the responses, and the number of their tokens."""
    return compute_loss_behind(model, rows)
