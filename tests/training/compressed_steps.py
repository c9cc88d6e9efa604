"""What a rank does for the tests of compressed gradients: gradients made up from a seed, averaged step by step."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.config import read_config
from training.process.distributed import Ranks, join_ranks
from training.process.files import write_json
from training.step.compression import Compressor, EightBits, LowRank

NUM_STEPS = 4
NAMED = {"one": torch.zeros(12, 9), "bias": torch.zeros(5), "other": torch.zeros(12, 9), "conv": torch.zeros(7, 3, 3)}
RANK = 2


def make_compressor(name: str, ranks: Ranks) -> Compressor:
    """Return a new one of that name."""
    return EightBits(NAMED, ranks) if name == "int8" else LowRank(NAMED, ranks, rank=RANK, seed=5)


def make_gradient(step: int, rank: int) -> dict[str, Tensor]:
    """Return the gradient of a rank in a step: parts as large as they differ, some ranks' far smaller."""
    random = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(part.shape, generator=random) * 10.0 ** (-rank) for name, part in NAMED.items()}


def main() -> int:
    """Average the gradients by both; rank 0 writes told.json and tensors.pt."""
    config = read_config(Path(sys.argv[-1]))
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    with join_ranks(config) as ranks:
        for name in ("powersgd", "int8"):
            compressor = make_compressor(name, ranks)
            applied, traffic = [], []
            for step in range(NUM_STEPS):
                found, sent = compressor.average(make_gradient(step, ranks.rank))
                applied.append({key: part.clone() for key, part in found.items()})
                traffic.append(dict(sent))
            total = float(sum(part.double().sum() for one in applied for part in one.values()))
            left = {key: ranks.gather(part.numpy()) for key, part in compressor.errors.items()}
            broken = make_gradient(0, ranks.rank)
            if ranks.rank:
                broken["other"][3, 4] = float("inf")
            spoiled, _ = compressor.average(broken)
            is_finite = all(bool(part.isfinite().all()) for part in spoiled.values())
            told[name] = {"total": ranks.gather_json(total), "traffic": traffic, "finite": ranks.gather_json(is_finite)}
            kept[name] = {"applied": applied, "left": {key: torch.from_numpy(part) for key, part in left.items()}}
        if ranks.is_first:
            write_json(config.work_dir / "told.json", told)
            torch.save(kept, config.work_dir / "tensors.pt")
    return 0
