"""ZeRO-1 (Rajbhandari et al. 2020): every rank holds the weights, and the optimizer's state of a share of them.

The gradient is reduced as with ddp. Then each rank updates the parameters that are dealt to it, and sends them to the
others. The update of a parameter needs its own gradient alone, beside the norm, which all ranks have: so every weight
is what ddp makes of it, to the bit.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.process.distributed import Ranks
from training.step.traffic import BROADCAST, Traffic
from training.strategies.ddp.step import Ddp

_ALIGNMENT = 64
"""Elements: a parameter begins where a tensor of its own could, so that every kernel treats it as one."""


class Shares:
    """Which rank updates which parameters; those of one rank lie side by side, so that they are sent at once."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.owners: dict[nn.Parameter, int] = {}
        """Parameter -> its rank."""
        self.flats: list[Tensor] = []
        """Rank -> all of its parameters, with room between them."""

    def deal(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Deal the parameters out, the largest first to whoever has least, and return those of this rank.

        Each becomes a view of one tensor of its rank.
        """
        rooms = {part: -(-part.numel() // _ALIGNMENT) * _ALIGNMENT for part in parameters}
        sizes = [0] * self._ranks.world_size
        for part in sorted(parameters, key=torch.numel, reverse=True):
            self.owners[part] = sizes.index(min(sizes))
            sizes[self.owners[part]] += rooms[part]
        self.flats = [torch.zeros(size, device=self._ranks.device) for size in sizes]
        ends = [0] * self._ranks.world_size
        for part, owner in self.owners.items():
            place = self.flats[owner][ends[owner] : ends[owner] + part.numel()].view_as(part)
            place.copy_(part.detach())
            part.data = place
            ends[owner] += rooms[part]
        return [part for part in parameters if self.owners[part] == self._ranks.rank]

    def send(self) -> Traffic:
        """Have every rank's parameters on all of them; return what was put into it."""
        group: Any = self._ranks.gradient_group
        sent = [(owner, flat) for owner, flat in enumerate(self.flats) if len(flat)]
        works: list[Any] = [dist.broadcast(flat, group=group, group_src=owner, async_op=True) for owner, flat in sent]
        for work in works:
            work.wait()
        return Traffic(len(sent), sum(flat.nbytes for _, flat in sent))


class Zero1(Ddp):
    """Every rank holds all weights; of the moments they hold one copy between them, which rank 0 writes."""

    name = "zero1"

    def place_and_select_updated(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the share that this rank updates; see Strategy."""
        super().place_and_select_updated(model)
        self._shares, self.ranks_per_copy = Shares(self._ranks), (1, self._ranks.world_size)
        return self._shares.deal([part for part in model.parameters() if part.requires_grad])

    def _send_weights(self) -> None:
        if self._communicates and self._ranks.world_size > 1:
            self._sent.add(BROADCAST, self._shares.send())

    def describe(self) -> dict[str, Any]:
        """Return what ddp says, `share_bytes` of the weights that each rank updates and sends, `largest_bytes` of one
        of them, which is never divided, and their number.
        """
        shares = self._shares
        return {
            **super().describe(),
            "share_bytes": [flat.nbytes for flat in shares.flats],
            "largest_bytes": max(part.nbytes for part in shares.owners),
            "num_parameters": len(shares.owners),
        }


STRATEGY = Zero1
