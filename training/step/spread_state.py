"""The state of a model whose parameters are on different ranks: the whole of it, as one rank that had all would."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.config import TrainingConfig
from training.model.weights import TensorDigest, list_differences, map_tied_names
from training.process.distributed import Ranks
from training.step.optimizer import group_parameters, list_moments, list_state_differences
from training.step.replica import Replica
from training.step.strategy import STATE, WEIGHTS, MisfitError, Part


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
            (weight_decay, [trained[part] for part in group])
            for weight_decay, group in group_parameters(list(trained), config)
        ]
        """(Weight decay, names) of each group of the optimizer."""
        self.moments = list_moments(config)
        """What the optimizer keeps of each."""

    @property
    def trained(self) -> list[str]:
        """What is trained, as an optimizer of all would number it."""
        return [name for _, group in self.groups for name in group]

    def require_fit(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Raise MisfitError unless a whole state is this model's."""
        named = [[(name, self.parameters[name]) for name in names] for _, names in self.groups]
        for part, differences in (
            (WEIGHTS, list_differences(weights, self.weights)),
            (STATE, list_state_differences(state, named, self.moments)),
        ):
            if differences:
                raise MisfitError(part, differences)


class SpreadState:
    """One copy of the state, of which every parameter is on one rank or more; all methods are collective.

    Where several have it each goes by its own: if they are not the same, the ranks' digests are not either.
    """

    def __init__(
        self,
        whole: WholeModel,
        replica: Replica,
        ranks: Ranks,
        *,
        own: Mapping[str, nn.Parameter],
        sources: Mapping[str, int],
    ) -> None:
        """`replica`: what this rank has; `own`: its parameters by the whole model's names; `sources`: name -> the rank
        that those ask who have it not."""
        self._whole, self._replica, self._ranks = whole, replica, ranks
        self._own, self._sources = own, sources

    def digest(self) -> tuple[str, str]:
        """Return this rank's digest of parameters and of the optimizer, its own parts and those of others together."""
        parameters, optimizer = TensorDigest(), TensorDigest()
        for name in sorted(self._whole.parameters):
            parameters.add(name, self._gather(name, self._find_own(name)))
        kept = {f"{key} of {name}": (name, key, source) for (name, key), source in self._find_moments().items()}
        others = {"loss scale": self._replica.collect_moments()["loss scale"]}
        for title in sorted([*kept, *others]):
            optimizer.add(title, self._gather_moment(*kept[title]) if title in kept else others[title])
        return parameters.hex(), optimizer.hex()

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state; see Strategy."""
        found: dict[str, Tensor] = {}
        for name in self._whole.parameters:
            tensor = self._gather(name, self._find_own(name))
            if self._ranks.is_first:
                # Apart from what is trained on.
                found[name] = tensor.clone()
        if self._ranks.is_first:
            found |= self._whole.constants
            yield Part(WEIGHTS, {name: found[self._whole.tied.get(name, name)] for name in self._whole.weights})
        else:
            yield Part(WEIGHTS, None)
        found.clear()
        yield Part(STATE, self._collect_state())

    def _collect_state(self) -> dict[str, Any] | None:
        kept: dict[int, dict[str, Tensor]] = {}
        places = {name: place for place, name in enumerate(self._whole.trained)}
        moments = self._find_moments()
        for (name, key), source in moments.items():
            tensor = self._gather_moment(name, key, source)
            if self._ranks.is_first:
                kept.setdefault(places[name], {})[key] = tensor
        if not self._ranks.is_first:
            return None
        state, with_moments = self._replica.state(), {name for name, _ in moments}
        like, groups = state["optimizer"]["param_groups"][0], []
        for weight_decay, names in self._whole.groups:
            groups.append({**like, "weight_decay": weight_decay, "params": [places[name] for name in names]})
        return {
            **state,
            "optimizer": {"state": kept, "param_groups": groups},
            "without_moments": [name for name in places if name not in with_moments],
        }

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every rank its own parts of it; see Strategy."""
        whole = self._whole
        whole.require_fit(weights, state)
        places = {name: place for place, name in enumerate(whole.trained)}
        names_of = {part: name for name, part in self._own.items()}
        saved, kept = state["optimizer"], dict[int, Any]()
        groups, number = [], 0
        for group in self._replica.optimizer.param_groups:
            parts = group["params"]
            like = saved["param_groups"][[decay for decay, _ in whole.groups].index(group["weight_decay"])]
            groups.append({**like, "params": list(range(number, number + len(parts)))})
            for part in parts:
                place = places[names_of[part]]
                if place in saved["state"]:
                    kept[number] = saved["state"][place]
                number += 1
        self._replica.load_state({**state, "optimizer": {"state": kept, "param_groups": groups}})
        with torch.no_grad():
            for name, own in self._own.items():
                own.copy_(weights[name])

    def _find_own(self, name: str) -> Tensor | None:
        part = self._own.get(name)
        return None if part is None else part.detach()

    def _find_moments(self) -> dict[tuple[str, str], int]:
        """Return every (name, kind) that some rank has -> the first that has it, in an order that is the same on all.

        Not each rank that has a parameter needs to update it.
        """
        state, found = self._replica.optimizer.state, dict[tuple[str, str], int]()
        mine = [[name, key] for name, part in self._own.items() for key in state.get(part, {})]
        for rank, its in enumerate(self._ranks.gather_json(mine)):
            for name, key in its:
                found.setdefault((name, key), rank)
        return dict(sorted(found.items()))

    def _gather_moment(self, name: str, key: str, source: int) -> Tensor:
        part = self._own.get(name)
        own = None if part is None else self._replica.optimizer.state.get(part, {}).get(key)
        # A count of steps is one number; all else is as large as its parameter.
        shape = () if key == "step" else None
        return self._gather(name, None if own is None else own.detach(), shape=shape, source=source)

    def _gather(
        self, name: str, own: Tensor | None, *, shape: Sequence[int] | None = None, source: int | None = None
    ) -> Tensor:
        """Return a tensor on the CPU: this rank's own, or that of the rank which others ask."""
        mine = None if own is None else own.cpu().contiguous()
        if self._ranks.world_size > 1:
            like, source = self._whole.parameters[name], self._sources[name] if source is None else source
            is_source = source == self._ranks.rank
            sent = mine if is_source else torch.empty(like.shape if shape is None else shape, dtype=like.dtype)
            assert sent is not None, f"{name} is not on the rank that has it"
            dist.broadcast(sent, src=source)
            mine = sent if mine is None else mine
        assert mine is not None
        return mine
