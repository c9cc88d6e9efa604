"""How ranks tell each other the statistics of batch normalisation: in a group of its own, and counted."""

import torch.distributed as dist
from torch import Tensor, nn

from training.model.sync_norm import SyncBatchNorm, list_statistics
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.step.traffic import Traffic


class StatisticsExchange:
    """What the layers of a model exchange; beside the gradients' group, whose collectives wait for each other."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        """Have the model's layers use it; to be called by all ranks."""
        layers = [part for part in model.modules() if isinstance(part, SyncBatchNorm)]
        self.channels = [part.num_features for part in layers]
        """Of each layer, in the order of the model."""
        if not ranks.counted_groups:
            ranks.counted_groups.append(ranks.join_group([range(ranks.world_size)]))
        self._group = ranks.counted_groups[0]
        self._world_size = ranks.world_size
        self._number = self._num_bytes = 0
        for part in layers:
            part.exchange = self

    def gather(self, mine: Tensor) -> Tensor:
        """Return every rank's tensor; see Exchange."""
        self._count(mine)
        everyones = mine.new_empty(self._world_size, *mine.shape)
        dist.all_gather(list(everyones.unbind()), mine, group=self._group)
        return everyones

    def add_up(self, mine: Tensor) -> Tensor:
        """Return the sum over all ranks; see Exchange."""
        self._count(mine)
        dist.all_reduce(mine, group=self._group)
        return mine

    def take_traffic(self) -> Traffic:
        """Return what was exchanged since the last call."""
        found = Traffic(self._number, self._num_bytes)
        self._number = self._num_bytes = 0
        return found

    def _count(self, tensor: Tensor) -> None:
        self._number += 1
        self._num_bytes += tensor.nbytes


def share_statistics(model: nn.Module, ranks: Ranks, *, communicates: bool) -> StatisticsExchange | None:
    """Have batch normalisation be over all ranks' rows; None where there is none, or one rank."""
    is_needed = communicates and ranks.world_size > 1 and bool(list_statistics(model))
    return StatisticsExchange(model, ranks) if is_needed else None


def refuse_statistics(model: nn.Module, what: str) -> None:
    """Raise UnfitModelError for a model with batch normalisation; `what` cannot have it."""
    if list_statistics(model):
        raise UnfitModelError(
            f"norm: sync_batch is not available for {what}; use norm: group, or strategy ddp or zero1 without exact"
        )
