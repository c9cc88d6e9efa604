"""The step that ranks make together after some that each made alone: weights are brought together, and moved on.

The mean of what all ranks changed in the weights since they last met is the gradient of an outer SGD with Nesterov
momentum (Douillard et al. 2023, DiLoCo, algorithm 1). With an outer learning rate of 1 and no momentum the weights
become the mean of the ranks' (Stich 2019, Local SGD converges fast and communicates little).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.process.distributed import Ranks
from training.step.ordered_sum import split_into_parcels, split_like
from training.step.traffic import Traffic


class OuterStep:
    """Keeps the weights of the last meeting beside those that this rank goes on with; with momentum, that too."""

    def __init__(self, model: nn.Module, ranks: Ranks, *, learning_rate: float, momentum: float) -> None:
        named = {name: part for name, part in model.named_parameters() if part.requires_grad}
        self._names, self._parameters = list(named), list(named.values())
        self._ranks = ranks
        self._met = [part.detach().clone() for part in self._parameters]
        self._optimizer = torch.optim.SGD(self._met, lr=learning_rate, momentum=momentum, nesterov=momentum > 0)
        for part in self._met if momentum else []:
            # From zeros the first step is the same, and there is a momentum to save before it.
            self._optimizer.state[part]["momentum_buffer"] = torch.zeros_like(part)
        self._parcels = list(split_into_parcels([part.nbytes for part in self._parameters]))
        self.num_since = 0
        """Steps of this rank since the last meeting; at 0 all ranks have the same weights."""

    @property
    def parcel_bytes(self) -> list[int]:
        """Of weights (fp32) in each exchange of a meeting."""
        return [sum(part.nbytes for part in self._parameters[parcel]) for parcel in self._parcels]

    def meet(self) -> Traffic:
        """Bring the ranks together; return what this one put into it. Collective."""
        with torch.no_grad():
            changes = [met - part for met, part in zip(self._met, self._parameters, strict=True)]
            for part, change in zip(self._met, self._average(changes), strict=True):
                part.grad = change
            self._optimizer.step()
            self._optimizer.zero_grad()
            for part, met in zip(self._parameters, self._met, strict=True):
                part.copy_(met)
        self.num_since = 0
        return Traffic(len(self._parcels), sum(self.parcel_bytes))

    def rehearse(self) -> None:
        """Exchange as much as a meeting does and change nothing. Collective."""
        self._average([torch.zeros_like(part) for part in self._met])

    def _average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean over the ranks of these tensors, each as large as its parameter."""
        group: Any = self._ranks.gradient_group
        flats = [torch.cat([part.reshape(-1) for part in tensors[parcel]]) for parcel in self._parcels]
        works: list[Any] = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats]
        found: list[Tensor] = []
        for parcel, flat, work in zip(self._parcels, flats, works, strict=True):
            work.wait()
            found += split_like(flat.div_(self._ranks.world_size), tensors[parcel])
        return found

    @contextlib.contextmanager
    def as_met(self) -> Iterator[None]:
        """Have the model hold the weights of the last meeting, while inside: the one model that all ranks have."""
        if not self.num_since:
            # Its own, which ought to be the same: whoever looks is to see what this rank does hold.
            yield
            return
        own = [part.data for part in self._parameters]
        for part, met in zip(self._parameters, self._met, strict=True):
            part.data = met
        try:
            yield
        finally:
            for part, kept in zip(self._parameters, own, strict=True):
                part.data = kept

    def collect_own(self) -> dict[str, Tensor]:
        """Return what this rank alone has of the weights, by name: its own between meetings, else nothing."""
        own = self._parameters if self.num_since else []
        return dict(zip(self._names, (part.detach() for part in own), strict=False))

    def collect_momentum(self) -> dict[str, Tensor]:
        """Return the outer momentum by the parameter's name, the same on all ranks; nothing without."""
        state = self._optimizer.state
        found = [(name, part) for name, part in zip(self._names, self._met, strict=True) if part in state]
        return {name: state[part]["momentum_buffer"] for name, part in found}

    def restore(self, own: Mapping[str, Tensor], momentum: Mapping[str, Tensor], *, num_since: int) -> None:
        """Go on from there; the model holds the weights of the last meeting. What is given fits."""
        with torch.no_grad():
            for name, part, met in zip(self._names, self._parameters, self._met, strict=True):
                met.copy_(part)
                if num_since:
                    part.copy_(own[name])
            for name, kept in self.collect_momentum().items():
                kept.copy_(momentum[name])
        self.num_since = num_since
