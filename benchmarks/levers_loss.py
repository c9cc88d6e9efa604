"""The loss alone: whole logits against chunks of rows, forward and backward."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rounds import compute_ratio
from training.model.linear_loss import linear_cross_entropy

VOCABULARIES = (2_048, 32_768)
CHUNKS = (64, 384, 2_048, 4_096)
"""The defaults of a CPU and of a GPU (training/config.py) among them; the last is all rows at once."""
ROWS = 4_096
ROUNDS = 6


def measure_loss(vocab_size: int) -> dict[str, Any]:
    """Time the loss's forward and backward on whole logits and in chunks, in turns, and note the largest tensor."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, 128, generator=generator).requires_grad_()
    weight = torch.randn(vocab_size, 128, generator=generator).requires_grad_()
    targets = torch.randint(vocab_size, (ROWS,), generator=generator)
    arms: dict[str, Callable[[], Tensor]] = {
        "whole logits": lambda: F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")
    }
    for rows in CHUNKS:
        arms[f"{rows} rows"] = lambda rows=rows: linear_cross_entropy(hidden, weight, targets, chunk_rows=rows)
        if hasattr(torch.nn, "LinearCrossEntropyOptions"):
            arms[f"{rows} rows by torch"] = lambda rows=rows: of_torch(hidden, weight, targets, chunk_rows=rows)
    seconds = seconds_in_turns(arms, leaves=[hidden, weight])
    gains = {name: compute_ratio(seconds["whole logits"], spans) for name, spans in seconds.items()}
    return {
        "vocab_size": vocab_size,
        "gains": {name: [gain.value, gain.low, gain.high] for name, gain in gains.items() if name != "whole logits"},
        "logits_mib": {
            name: (ROWS if name == "whole logits" else int(name.split()[0])) * vocab_size * 4 / 2**20 for name in arms
        },
        "seconds": seconds,
    }


def of_torch(hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk_rows: int) -> Tensor:
    """Return the same loss by torch's own function, which it has from 2.13 on."""
    from torch.nn import LinearCrossEntropyOptions

    options = LinearCrossEntropyOptions(batch_chunk_size=chunk_rows)
    loss: Tensor = F.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    return loss


def seconds_in_turns(arms: Mapping[str, Callable[[], Tensor]], *, leaves: Sequence[Tensor]) -> dict[str, list[float]]:
    """Return the seconds of forward and backward of every arm in every round; another round leads in."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(ROUNDS + 1):
        names = list(arms) if turn % 2 else list(reversed(arms))
        for name in names:
            started = time.perf_counter()
            arms[name]().backward()
            taken = time.perf_counter() - started
            for leaf in leaves:
                leaf.grad = None
            if turn:
                seconds[name].append(taken)
    return seconds


def loss_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return what was found as lines of the table."""
    whole = found["logits_mib"]["whole logits"]
    return [
        [
            f"loss in chunks of {name}, vocabulary {found['vocab_size']:,}", "1", "",
            f"{value:.3f} ({low:.3f} to {high:.3f})", "",
            f"logits in memory {whole:,.0f} -> {found['logits_mib'][name]:,.0f} MiB",
        ]
        for name, (value, low, high) in found["gains"].items()
    ]  # fmt: skip
