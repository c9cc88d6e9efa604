"""Packs of one length: what all packs of a segment have, whatever rows are in them, so that no shape ever changes."""

from dataclasses import dataclass, replace

import numpy as np
import torch.nn.functional as F

from training.data.batches import IGNORED_LABEL, MicroBatch, make_documents

_LEAST_STEP = 8
"""Positions: sizes are multiples of so many at least, as those of other micro-batches are."""


@dataclass(frozen=True)
class PackShape:
    """What every pack of a segment has."""

    num_positions: int
    """Positions, padding included."""
    num_documents: int
    """Documents, of padding and without a position included."""
    longest_document: int
    """Positions of a document at most: as long as the longest row."""


def find_pack_shape(lengths: np.ndarray, *, global_batch_size: int, micro_batch_size: int) -> PackShape:
    """Return what holds every pack of a segment whose rows have these lengths, in the order of its steps.

    Rows are shared out in every step as `training.data.plan` does it, in all steps at once.
    """
    whole = len(lengths) // global_batch_size * global_batch_size
    steps = [lengths[:whole].reshape(-1, global_batch_size), lengths[whole:].reshape(1, -1)]
    found = [_find_largest_packs(part, -(-part.shape[1] // micro_batch_size)) for part in steps if part.size]
    num_tokens, num_rows = (max(sizes) for sizes in zip(*found, strict=True))
    longest, num_positions = max(int(lengths.max()), 1), _round_up(num_tokens)
    num_paddings = -(-num_positions // longest)
    return PackShape(num_positions, (1 << (num_rows - 1).bit_length()) + num_paddings, longest)


def _find_largest_packs(steps: np.ndarray, num_packs: int) -> tuple[int, int]:
    """Return the most tokens and the most rows in a pack of steps of rows, each shared out over so many packs."""
    numbers = np.arange(len(steps))
    tokens, rows = (np.zeros((len(steps), num_packs), dtype=np.int64) for _ in range(2))
    for longest_left in -np.sort(-steps, axis=1).T:
        least = tokens.argmin(axis=1)
        tokens[numbers, least] += np.maximum(longest_left, 1)
        rows[numbers, least] += 1
    return int(tokens.max()), int(rows.max())


def _round_up(num_tokens: int) -> int:
    """Return the next of few sizes, at most a sixteenth above: epochs and ranges of like rows have the same one."""
    step = max(_LEAST_STEP, 1 << max(num_tokens.bit_length() - 5, 0))
    return -(-num_tokens // step) * step


def pad_pack(pack: MicroBatch, shape: PackShape) -> MicroBatch:
    """Return the pack, or a dummy, in that shape. What is added are documents of padding, without a label."""
    documents, num_added = pack.documents, shape.num_positions - pack.num_positions
    starts = np.zeros(0, dtype=np.int64) if documents is None else documents.boundaries[:-1].numpy()
    end = 0 if documents is None else pack.num_positions - pack.num_padding_tokens
    paddings = np.arange(end, shape.num_positions, shape.longest_document)
    return replace(
        pack,
        input_ids=F.pad(pack.input_ids, (0, num_added)),
        labels=F.pad(pack.labels, (0, num_added), value=IGNORED_LABEL),
        num_padding_tokens=0 if documents is None else pack.num_padding_tokens + num_added,
        documents=make_documents(
            np.concatenate([starts, paddings]),
            shape.num_positions,
            num_documents=shape.num_documents,
            longest=shape.longest_document,
        ),
    )
