"""What a checkpoint holds: the state of one rank that has all, whichever rank has which part of it.

torch.distributed.checkpoint.state_dict does not give that: of an optimizer without state it makes a step, it gathers
over the gradients' group and through the device's memory, and knows nothing of parameters of which only one rank keeps
the moments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from training.config import TrainingConfig
from training.model.weights import TensorDigest, list_differences, map_tied_names
from training.process.distributed import Ranks
from training.step.optimizer import group_parameters, list_moments

WEIGHTS, STATE = "weights", "state"
"""The parts of a snapshot: the model's state dict, and all else that the next step depends on."""
NamedGroups = Sequence[tuple[float, Sequence[tuple[str, Tensor]]]]
"""(Weight decay, named parameters) of each group of an optimizer that has all."""


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


def list_state_differences(
    state: Mapping[str, Any], groups: Sequence[Sequence[tuple[str, Tensor]]], moments: Sequence[str]
) -> list[str]:
    """Return in what a saved state of the optimizer does not fit these groups of named parameters, one line each.

    torch looks at little. Raises KeyError, TypeError or AttributeError for what is no such state at all.
    """
    saved = state["optimizer"]
    sizes, wanted_sizes = [len(group["params"]) for group in saved["param_groups"]], list(map(len, groups))
    if sizes != wanted_sizes:
        return [f"the optimizer's groups have {sizes} parameters, the model's {wanted_sizes}"]
    wanted, got = {}, {}
    for index, (name, part) in enumerate(named for group in groups for named in group):
        for moment in moments:
            if name not in state["without_moments"]:
                wanted[f"{moment} of {name}"] = part
            if moment in saved["state"].get(index, {}):
                got[f"{moment} of {name}"] = saved["state"][index][moment]
    return list_differences(got, wanted)


def collect_state(
    optimizer: Optimizer,
    groups: NamedGroups,
    moments: Iterable[tuple[str, str, Any]],
    others: Mapping[str, Any],
    *,
    is_kept: bool,
) -> dict[str, Any] | None:
    """Return the whole state of (parameter, kind, whole moment), each on the CPU; None where it is not kept.

    `optimizer`: this rank's; `others`: what of the state all ranks have.
    """
    names = [name for _, group in groups for name, _ in group]
    places, kept = {name: place for place, name in enumerate(names)}, dict[int, dict[str, Any]]()
    for name, key, value in moments:
        if is_kept:
            kept.setdefault(places[name], {})[key] = value
    if not is_kept:
        return None
    like = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {
        "optimizer": {
            "state": kept,
            "param_groups": [
                {**like, "weight_decay": weight_decay, "params": [places[name] for name, _ in group]}
                for weight_decay, group in groups
            ],
        },
        **others,
        "without_moments": [name for name, place in places.items() if place not in kept],
    }


def select_own(
    optimizer: Optimizer,
    groups: NamedGroups,
    state: Mapping[str, Any],
    own: Mapping[str, nn.Parameter],
    *,
    cut: Callable[[Any, nn.Parameter], Any] = lambda value, _: value,
) -> dict[str, Any]:
    """Return of a whole state what belongs to the parameters that this rank's optimizer updates.

    `own`: those that the rank has, by the whole model's names; `cut` returns what of a whole moment is this rank's.
    """
    names, saved = {part: name for name, part in own.items()}, state["optimizer"]
    places = {name: place for place, name in enumerate(name for _, group in groups for name, _ in group)}
    kept, results, number = dict[int, Any](), [], 0
    for group in optimizer.param_groups:
        like = saved["param_groups"][[decay for decay, _ in groups].index(group["weight_decay"])]
        results.append({**like, "params": list(range(number, number + len(group["params"])))})
        for part in group["params"]:
            place = places[names[part]]
            if place in saved["state"]:
                kept[number] = {key: cut(value, part) for key, value in saved["state"][place].items()}
            number += 1
    return {**state, "optimizer": {"state": kept, "param_groups": results}}


class WholeModel:
    """What the model was before it was shared out: names and shapes, without memory."""

    def __init__(self, model: nn.Module, config: TrainingConfig) -> None:
        self.parameters = {
            name: nn.Parameter(torch.empty_like(part, device="meta"), requires_grad=part.requires_grad)
            for name, part in model.named_parameters()
        }
        """Name -> the parameter; a tied one once, under its first name."""
        self.tied = map_tied_names(model)
        """Further name -> first name."""
        named = model.state_dict()
        self.weights = {name: torch.empty_like(part, device="meta") for name, part in named.items()}
        """What the state dict holds."""
        self.constants = {
            name: part.clone() for name, part in named.items() if self.tied.get(name, name) not in self.parameters
        }
        """What of it is no parameter, and stays what it is."""
        trained = {part: name for name, part in self.parameters.items() if part.requires_grad}
        self.groups = [
            (weight_decay, [(trained[part], part) for part in group])
            for weight_decay, group in group_parameters(list(trained), config)
        ]
        """(Weight decay, named parameters) of each group of the optimizer."""
        self.trained = [name for _, group in self.groups for name, _ in group]
        """What is trained, as an optimizer of all would number it."""
        self.moments = list_moments(config)
        """What the optimizer keeps of each."""
        self.num_checkpoint_bytes = sum(part.nbytes for part in self.parameters.values()) + len(self.moments) * sum(
            part.nbytes for part in trained
        )
        """About how much a checkpoint takes: weights and moments."""

    def require_fit(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Raise MisfitError unless a whole state is this model's."""
        for part, differences in (
            (WEIGHTS, list_differences(weights, self.weights)),
            (STATE, list_state_differences(state, [group for _, group in self.groups], self.moments)),
        ):
            if differences:
                raise MisfitError(part, differences)

    def collect_weights(self, parameters: Iterable[tuple[str, Tensor]], *, is_kept: bool) -> Part:
        """Return the weights of whole parameters, each on any device; they may change afterwards."""
        results = {name: part.to("cpu", copy=True) for name, part in parameters if is_kept} | self.constants
        return Part(WEIGHTS, {name: results[self.tied.get(name, name)] for name in self.weights} if is_kept else None)


class ScatteredMoments:
    """Moments of which each is on one rank or more, that of a parameter whole; all methods are collective."""

    def __init__(
        self, optimizer: Optimizer, ranks: Ranks, own: Mapping[str, nn.Parameter], shapes: Mapping[str, Tensor]
    ) -> None:
        """`own`: this rank's parameters by the whole model's names; `shapes`: as large as all of them."""
        self._optimizer, self._ranks, self._own, self._shapes = optimizer, ranks, own, shapes

    def digest(self, others: Mapping[str, Tensor]) -> str:
        """Return this rank's digest of all moments, its own and those of others together, and of what all have."""
        digest = TensorDigest()
        held = {f"{key} of {name}": (name, key, source) for (name, key), source in self._find_sources().items()}
        for title in sorted([*held, *others]):
            digest.add(title, self._gather_moment(*held[title]) if title in held else others[title])
        return digest.hex()

    def generate(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (parameter, kind, moment) of each, on the CPU."""
        for (name, key), source in self._find_sources().items():
            yield name, key, self._gather_moment(name, key, source)

    def _find_sources(self) -> dict[tuple[str, str], int]:
        """Return every (name, kind) that some rank has -> the first that has it, in an order that is the same on all.

        Not each rank that has a parameter needs to update it.
        """
        state, results = self._optimizer.state, dict[tuple[str, str], int]()
        mine = [[name, key] for name, part in self._own.items() for key in state.get(part, {})]
        for rank, its in enumerate(self._ranks.gather_json(mine)):
            for name, key in its:
                results.setdefault((name, key), rank)
        return dict(sorted(results.items()))

    def _gather_moment(self, name: str, key: str, source: int) -> Tensor:
        part = self._own.get(name)
        own = None if part is None else self._optimizer.state.get(part, {}).get(key)
        like = self._shapes[name]
        # A count of steps is one number; all else is as large as its parameter.
        blank = torch.empty(() if key == "step" else like.shape, dtype=like.dtype)
        return send_from(source, self._ranks, own, blank)


def list_copies(texts: Sequence[str], size: int) -> list[str]:
    """Return one of every rank's texts for each copy that so many neighbours hold; more of one of which they differ."""
    starts = range(0, len(texts), size)
    return [text for start in starts for text in dict.fromkeys(texts[start : start + size])]


def send_from(source: int, ranks: Ranks, own: Tensor | None, blank: Tensor) -> Tensor:
    """Return a tensor on the CPU: this rank's own or, where it has none, that of the rank which others ask.

    `blank`: as large, on the CPU. Where several have it each goes by its own: if they are not the same, the ranks'
    digests are not either.
    """
    mine = None if own is None else own.detach().cpu().contiguous()
    if ranks.world_size > 1:
        sent = mine if source == ranks.rank else blank
        assert sent is not None, "a tensor is not on the rank that has it"
        dist.broadcast(sent, src=source)
        mine = sent if mine is None else mine
    assert mine is not None
    return mine
