"""What a model comes to on all held-out rows: sums, so that it does not matter how the rows are batched."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.process.failure import DataError
from tasks.process.progress import show_progress

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import nn

    from training.data.batches import Rows

_MAX_TOKENS_PER_BATCH = 16_384
_LOGITS_BYTES = {"cpu": 2**30, "cuda": 6 * 2**30}
"""Memory for the logits of a batch: with a vocabulary of 152,000 they, not the model, fill it."""


def make_batches(lengths: np.ndarray, *, max_tokens: int) -> list[list[int]]:
    """Return all rows, longest first, in batches of at most `max_tokens` with padding; a longer row stands alone."""
    batches: list[list[int]] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        # The first row of a batch is its longest: all others are padded to it.
        if batches and (len(batches[-1]) + 1) * int(lengths[batches[-1][0]]) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def compute_sums(
    source: "Rows", model: "nn.Module", workload: Any, *, seq_len: int, vocab_size: int | None, what: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Return the sums over all rows of the loss and of what else the workload measures; and what was counted.

    That is `num_tokens` and `num_targets`, each once. `vocab_size`: of a model that gives logits for every position.
    """
    device = next(model.parameters()).device
    lengths = source.lengths(seq_len)
    max_tokens = _MAX_TOKENS_PER_BATCH
    if vocab_size is not None and not workload.HAS_LABELS:
        # Logits in fp32, their log-softmax and one copy.
        max_tokens = min(max_tokens, _LOGITS_BYTES[device.type] // (3 * 4 * vocab_size))
    sums: dict[str, float] = {}
    counts = {"num_tokens": 0, "num_targets": 0}
    with show_progress(what, len(source)) as advance:
        for batch in make_batches(lengths, max_tokens=max_tokens):
            micro_batch = source.collate(batch, seq_len=seq_len).to(device)
            for name, value in workload.metrics(model, micro_batch).items():
                sums[name] = sums.get(name, 0.0) + float(value)
            for name in counts:
                counts[name] += getattr(micro_batch, name)
            advance(len(batch))
    expected = int(source.num_targets(seq_len).sum())
    assert counts["num_targets"] == expected, f"{counts['num_targets']} labels counted, the rows have {expected}"
    if not expected:
        raise DataError("no held-out row has a second token to predict; choose other rows as heldout")
    return sums, counts
