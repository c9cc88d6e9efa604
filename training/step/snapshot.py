"""What a checkpoint holds: the state of one rank that has all, whichever rank has which part of it.

torch.distributed.checkpoint.state_dict does not give that: of an optimizer without state it makes a step, it gathers
over the gradients' group and through the device's memory, and knows nothing of parameters of which only one rank keeps
the moments.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from training.config import TrainingConfig
from training.model.adapter import Adapter, make_plain
from training.model.weights import copy_alone, list_differences, map_tied_names
from training.process.distributed import Ranks
from training.process.failure import RanksDisagreeError
from training.step.optimizer import group_parameters, list_moments

WEIGHTS, STATE = "weights", "state"
"""The parts of a snapshot: the model's state dict, and all else that the next step depends on."""


class Part(NamedTuple):
    """One file of a snapshot."""

    name: str
    """WEIGHTS or STATE."""
    content: Mapping[str, Any] | None
    """What is to be written, whole: on rank 0, which writes it; None on the other ranks."""


class Digests(NamedTuple):
    """What is alike if and only if the state is: sha256 (hex), one of each whole copy that the ranks hold together.

    Where every rank holds a copy there is one per rank, where they share one between them there is one: all must be
    equal. The list is the same on all ranks, in the order of each copy's first rank.
    """

    parameters: list[str]
    """Of the parameters, and of the running statistics of batch normalisation."""
    optimizer: list[str]
    """Of what the next update depends on beside them: moments, loss scale."""


class MisfitError(ValueError):
    """A part of a snapshot is none of this model's or optimizer's; nothing has been changed."""

    def __init__(self, part: str, differences: Sequence[str]) -> None:
        super().__init__("; ".join(differences))
        self.part = part
        self.differences = list(differences)


class Piece(NamedTuple):
    """What this rank has of a tensor: elements that lie side by side in it, of any shape and on any device."""

    elements: Tensor
    shape: Sequence[int]
    """Of the whole."""
    start: int = 0
    """The first of its elements that this rank has."""


def generate_whole(
    ranks: Ranks, mine: Mapping[str, Piece], *, order: Callable[[str], Any] = str
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of which some rank has elements, whole and on the CPU of each, by name. Collective.

    It goes over the ranks' own group, beside those of the gradients, whose exchanges are counted. What a rank has goes
    by its own elements, all else by those of the first rank that has them: where ranks that have the same differ, their
    digests do. Raises RanksDisagreeError for a tensor that the ranks do not hold between them.
    """
    said = ranks.gather_values({name: (part.start, part.elements.numel(), part.shape) for name, part in mine.items()})
    for name in sorted({name for its in said for name in its}, key=order):
        firsts: dict[tuple[int, int], int] = {}
        for rank, its in enumerate(said):
            if name in its:
                start, length, shape = its[name]
                firsts.setdefault((start, length), rank)
        if (got := sum(length for _, length in firsts)) != math.prod(shape):
            raise RanksDisagreeError(f"the ranks hold {got} elements of {name} between them, it has {math.prod(shape)}")
        own = mine[name].elements.detach().cpu().reshape(-1) if name in mine else torch.empty(0)
        whole = own
        if len(firsts) > 1 or not all(name in its for its in said):
            whole = torch.empty(math.prod(shape))
            for (start, length), rank in firsts.items():
                if length:
                    dist.broadcast(own if rank == ranks.rank else whole[start : start + length], src=rank)
            if name in mine:
                whole[mine[name].start :][: len(own)] = own
        yield name, whole.reshape(shape)


class WholeModel:
    """What the model was before it was shared out: names and shapes, without memory; and what is saved of it."""

    def __init__(self, model: nn.Module, config: TrainingConfig, adapter: Adapter | None) -> None:
        self._adapter = adapter
        self.parameters = {
            make_plain(name): nn.Parameter(torch.empty_like(part, device="meta"), requires_grad=part.requires_grad)
            for name, part in model.named_parameters()
        }
        """Name -> the parameter; a tied one once, under its first name."""
        self.tied = {make_plain(name): make_plain(first) for name, first in map_tied_names(model).items()}
        """Further name -> first name."""
        named = model.state_dict() if adapter is None else adapter.outline_weights()
        self._weights = {name: torch.empty_like(part, device="meta") for name, part in named.items()}
        """What the state dict holds."""
        self._constants = {
            name: part for name, part in named.items() if self.tied.get(name, name) not in self.parameters
        }
        """What of it is no parameter, and stays what it is where a rank does not have the whole model."""
        trained = {part: name for name, part in self.parameters.items() if part.requires_grad}
        self._groups = [
            (weight_decay, [trained[part] for part in group])
            for weight_decay, group in group_parameters(list(trained), config)
        ]
        """(Weight decay, names) of each group of an optimizer of all."""
        self.trained = [name for _, group in self._groups for name in group]
        """What is trained, as an optimizer of all would number it."""
        self.moments = list_moments(config)
        """What the optimizer keeps of each."""
        self.num_checkpoint_bytes = sum(part.nbytes for part in self.parameters.values()) + len(self.moments) * sum(
            part.nbytes for part in trained
        )
        """About how much a checkpoint takes: weights and moments."""
        if adapter is not None:
            self.num_checkpoint_bytes += adapter.num_bytes_saved

    def require_fit(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Raise MisfitError unless a whole state is this model's.

        torch looks at little. Raises KeyError, TypeError or AttributeError for what is no state at all.
        """
        saved, adapter = state["optimizer"], self._adapter
        sizes = [len(group["params"]) for group in saved["param_groups"]]
        wanted_sizes = [len(group) for _, group in self._groups]
        differences = [f"the optimizer's groups have {sizes} parameters, the model's {wanted_sizes}"]
        if sizes == wanted_sizes:
            wanted, got = {}, {}
            for index, name in enumerate(self.trained):
                for moment in self.moments:
                    if name not in state["without_moments"]:
                        wanted[f"{moment} of {name}"] = self.parameters[name]
                    if moment in saved["state"].get(index, {}):
                        got[f"{moment} of {name}"] = saved["state"][index][moment]
            differences = list_differences(got, wanted)
        if adapter is not None:
            differences += list_differences(state["adapter"], adapter.factors())
        for part, result in ((WEIGHTS, list_differences(weights, self._weights)), (STATE, differences)):
            if result:
                raise MisfitError(part, result)
        if adapter is not None:
            merged = adapter.merge_weights(state["adapter"])
            if wrong := [name for name, part in merged.items() if not torch.allclose(part, weights[name], rtol=1e-6)]:
                raise MisfitError(WEIGHTS, [f"{name} is not that of the base with its factors" for name in wrong])

    def collect_weights(self, parameters: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
        """Return the state dict on the CPU, in which what is tied is one tensor; `module`: whose buffers are in it."""
        buffers = self._constants | {make_plain(name): part for name, part in module.named_buffers()}
        results = {name: copy_alone(part) for name, part in buffers.items() if name in self._weights} | parameters
        return {name: results[self.tied.get(name, name)] for name in self._weights}

    def collect_state(
        self, optimizer: Optimizer, moments: Mapping[str, Tensor], others: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the state of `KIND of PARAMETER` and whole moments; `others`: what of it all ranks have."""
        places, kept = {name: place for place, name in enumerate(self.trained)}, dict[int, dict[str, Tensor]]()
        for title, value in moments.items():
            key, _, name = title.partition(" of ")
            kept.setdefault(places[name], {})[key] = value
        like = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        return {
            "optimizer": {
                "state": kept,
                "param_groups": [
                    {**like, "weight_decay": weight_decay, "params": [places[name] for name in group]}
                    for weight_decay, group in self._groups
                ],
            },
            **others,
            "without_moments": [name for name, place in places.items() if place not in kept],
        }

    def select_state(
        self,
        state: Mapping[str, Any],
        optimizer: Optimizer,
        own: Mapping[str, nn.Parameter],
        *,
        cut: Callable[[Tensor, nn.Parameter], Tensor],
    ) -> dict[str, Any]:
        """Return of a whole state what belongs to the parameters that this rank's optimizer updates.

        `own`: those that the rank has, by the whole model's names; `cut` returns what of a whole moment is this rank's.
        """
        names, saved = {part: name for name, part in own.items()}, state["optimizer"]
        kept, results, number = dict[int, Any](), [], 0
        for group in optimizer.param_groups:
            like = saved["param_groups"][[decay for decay, _ in self._groups].index(group["weight_decay"])]
            results.append({**like, "params": list(range(number, number + len(group["params"])))})
            for part in group["params"]:
                # A count of steps is one number; all else is as large as its parameter.
                for key, value in saved["state"].get(self.trained.index(names[part]), {}).items():
                    is_like = isinstance(value, Tensor) and value.shape == part.shape
                    kept.setdefault(number, {})[key] = cut(value, part) if is_like else value
                number += 1
        return {**state, "optimizer": {"state": kept, "param_groups": results}}


def list_copies(texts: Sequence[str], size: int) -> list[str]:
    """Return one of every rank's texts for each copy that so many neighbours hold; more of one of which they differ."""
    starts = range(0, len(texts), size)
    return [text for start in starts for text in dict.fromkeys(texts[start : start + size])]
