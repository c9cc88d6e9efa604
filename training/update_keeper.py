"""What each update begins with, as files: what the equivalence certificate compares. Never kept in a training."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from training.config import UPDATES_FOLDER
from training.distributed import Ranks
from training.files import make_folder
from training.weights import tensor_checksum

_log = logging.getLogger(__name__)


class UpdateKeeper:
    """Writes `step-<n>.pt` (n from 1) into the folder of the updates, before each update is made.

    A file holds `weights`, as they are before the update, and `gradient`, after the reduction over all ranks and before
    clipping: rank 0's, by parameter name, on the CPU; and `weight_checksums` and `gradient_checksums`, one per rank.
    """

    def __init__(self, work_dir: Path, ranks: Ranks, model: nn.Module) -> None:
        self._folder = work_dir / UPDATES_FOLDER
        self._ranks = ranks
        self._model = model
        self._num_steps = 0

    def __call__(self, gradient: Mapping[str, Tensor]) -> None:
        """Take the gradient of a step; called by all ranks in every step."""
        self._num_steps += 1
        weights = {name: part.detach() for name, part in self._model.named_parameters() if part.requires_grad}
        checksums = {
            "weight_checksums": self._ranks.gather_text(tensor_checksum(weights)),
            "gradient_checksums": self._ranks.gather_text(tensor_checksum(gradient)),
        }
        if self._ranks.is_first:
            make_folder(self._folder)
            kept = {"weights": _on_cpu(weights), "gradient": _on_cpu(gradient), **checksums}
            torch.save(kept, self._folder / f"step-{self._num_steps:08d}.pt")
            _log.info("kept what update %d begins with, %d tensors", self._num_steps, len(gradient))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # A gradient may be a view of a bucket, which would be stored whole with each of its parts.
    return {name: part.detach().cpu().clone() for name, part in tensors.items()}
