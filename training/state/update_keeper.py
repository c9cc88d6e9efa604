"""What each update begins with, as files: what the equivalence certificate compares. Never kept in a training."""

import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from training.config import UPDATES_FOLDER
from training.model.weights import TensorDigest
from training.process.distributed import Ranks
from training.process.files import make_folder
from training.step.strategy import Strategy

_log = logging.getLogger(__name__)


class UpdateKeeper:
    """Writes `step-<n>.pt` (n from 1) into the folder of the updates, before each update is made.

    A file holds `weights`, as they are before the update, and `gradient`, after the reduction over all ranks and before
    clipping, whole, by parameter name, on the CPU; and `weight_checksums` and `gradient_checksums`, one per rank.
    """

    def __init__(self, work_dir: Path, ranks: Ranks, strategy: Strategy) -> None:
        self._folder = work_dir / UPDATES_FOLDER
        self._ranks = ranks
        self._strategy = strategy
        self._num_steps = 0

    def __call__(self) -> None:
        """Take what the step's update begins with; called by all ranks in every step."""
        self._num_steps += 1
        weights, weight_checksums = self._collect_tensors(self._strategy.full_parameters())
        gradient, gradient_checksums = self._collect_tensors(self._strategy.full_gradient())
        if self._ranks.is_first:
            make_folder(self._folder)
            kept = {
                "weights": weights, "gradient": gradient,
                "weight_checksums": weight_checksums, "gradient_checksums": gradient_checksums,
            }  # fmt: skip
            torch.save(kept, self._folder / f"step-{self._num_steps:08d}.pt")
            _log.info("kept what update %d begins with, %d tensors", self._num_steps, len(gradient))

    def _collect_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the tensors on the CPU, on rank 0, and every rank's checksum of them."""
        digest, kept = TensorDigest(), {}
        for name, part in tensors:
            digest.add(name, part)
            if self._ranks.is_first:
                # A gradient may be a view of a bucket, which would be stored whole with each of its parts.
                kept[name] = part.detach().cpu().clone()
        return kept, self._ranks.gather_text(digest.hex())
