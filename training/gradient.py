"""The reduced gradient of one step as a file: what the equivalence certificate compares. Never kept in a training."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from training.config import GRADIENT_FILE
from training.distributed import Ranks
from training.weights import tensor_checksum

_log = logging.getLogger(__name__)


class GradientKeeper:
    """Writes the gradient of the first step in which it is finite on all ranks; under fp16 that may not be step 1.

    The file holds `step` (from 1), `checksums` (one per rank, in rank order) and `gradient`: rank 0's, after the
    reduction over all ranks and before clipping, by parameter name, on the CPU.
    """

    def __init__(self, work_dir: Path, ranks: Ranks) -> None:
        self._path = work_dir / GRADIENT_FILE
        self._path.unlink(missing_ok=True)
        self._ranks = ranks
        self._num_steps = 0
        self._is_kept = False

    def __call__(self, gradient: Mapping[str, Tensor]) -> None:
        """Take the gradient of a step; called by all ranks in every step."""
        self._num_steps += 1
        if self._is_kept or self._ranks.highest(int(not _is_finite(gradient))):
            return
        self._is_kept = True
        checksums = self._ranks.gather_text(tensor_checksum(gradient))
        if self._ranks.is_first:
            on_cpu = {name: part.detach().to("cpu", copy=True) for name, part in gradient.items()}
            torch.save({"step": self._num_steps, "checksums": checksums, "gradient": on_cpu}, self._path)
            _log.info("kept the gradient of step %d, %d tensors", self._num_steps, len(on_cpu))


def _is_finite(gradient: Mapping[str, Tensor]) -> bool:
    return all(bool(part.isfinite().all()) for part in gradient.values())
