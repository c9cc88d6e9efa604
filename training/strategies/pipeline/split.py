"""A model cut into stages between its layers: each runs the model's own forward, from where the one before it ended.

So masks, positions and packed rows are on every stage what they are in the whole model, and only hidden states are
handed on.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.model.layers import list_layers
from training.process.failure import UnfitModelError


class _HandedOnError(Exception):
    """Ends a forward pass where the stage ends; carries the hidden states."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__("the stage ends here")
        self.hidden = hidden


class Cut:
    """A model of which some stages are run here: its layers one after another, what comes before them, and after."""

    def __init__(self, model: nn.Module, run: Callable[[], object], *, num_stages: int) -> None:
        """`run` makes one forward pass of the whole model.

        Raises UnfitModelError for a model whose class names no layers, or fewer than stages.
        """
        named = set(list_layers(model))
        lists = [
            part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) and named >= set(part)
        ]
        if len(lists) != 1:
            raise UnfitModelError(
                f"{type(model).__name__} has no list of layers between which it could be cut into stages; use strategy "
                "ddp"
            )
        (self._list,) = lists
        self._layers = list(self._list)
        if len(self._layers) < num_stages:
            raise UnfitModelError(
                f"{num_stages} stages of a model of {len(self._layers)} layers; allowed: at most as many stages as "
                "layers, or strategy ddp"
            )
        self._front, self._back, self.hidden_size = _watch_forward(model, self._layers, run)
        groups = [list(self._front), *([layer] for layer in self._layers), self._back]
        # About what each takes of a step: all that comes before the layers, every layer, all that comes after.
        before, *layers, after = (sum(map(count_multiplied, group)) for group in groups)
        self.layers_of_stages = balance(layers, num_stages, before=before, after=after)
        """Stage -> its layers, numbered from 0."""
        self._received: Tensor | None = None
        self._begin: Callable[[], None] = lambda: None
        self._arrangements = {stage: self._arrange(stage) for stage in range(num_stages)}

    def stages_of(self, model: nn.Module) -> dict[str, list[int]]:
        """Return each parameter of the whole model -> the stages that have it: a tied one the first and the last."""
        last = len(self.layers_of_stages) - 1
        stages: dict[int, set[int]] = {}
        for part in model.modules():
            for parameter in part.parameters(recurse=False):
                stages.setdefault(id(parameter), set()).add(0 if part in self._front else last)
        for stage, numbers in enumerate(self.layers_of_stages):
            for number in numbers:
                stages |= {id(parameter): {stage} for parameter in self._layers[number].parameters()}
        return {name: sorted(stages[id(parameter)]) for name, parameter in model.named_parameters()}

    def keep(self, stages: Sequence[int]) -> None:
        """Drop the parameters of all other stages from the model."""
        kept = {number for stage in stages for number in self.layers_of_stages[stage]}
        if 0 not in stages:
            for part, width in self._front.items():
                _forget_parameters(part)
                part.forward = _make_blank(width)
        if len(self.layers_of_stages) - 1 not in stages:
            for part in self._back:
                _forget_parameters(part)
        self._layers = [layer if number in kept else self._skip(layer) for number, layer in enumerate(self._layers)]
        self._arrangements = {stage: self._arrange(stage) for stage in stages}
        self._list._modules = _number(self._layers)

    def run(
        self, stage: int, received: Tensor | None, forward: Callable[[], Tensor], *, begin: Callable[[], None]
    ) -> Tensor:
        """Return what a stage hands on, or on the last stage what `forward`, which runs the model, gives.

        `received`: what the stage before handed on, as the model shapes its hidden states; None on the first. `begin`
        is called where the layers of a later one begin.
        """
        self._received, self._begin = received, begin
        self._list._modules = self._arrangements[stage]
        try:
            return forward()
        except _HandedOnError as end:
            return end.hidden
        finally:
            self._list._modules = _number(self._layers)
            self._received = None

    def _give_received(self, *_: Any, **__: Any) -> Tensor | None:
        self._begin()
        return self._received

    def _arrange(self, stage: int) -> dict[str, nn.Module]:
        """Return the layers as the model has them while the stage runs."""
        mine = self.layers_of_stages[stage]
        arranged = []
        for number, layer in enumerate(self._layers):
            if number in mine:
                arranged.append(layer)
            elif number == mine[0] - 1:
                arranged.append(_replace(layer, self._give_received))
            elif number == mine[-1] + 1:
                arranged.append(_replace(layer, _hand_on))
            else:
                arranged.append(self._skip(layer))
        return _number(arranged)

    @staticmethod
    def _skip(layer: nn.Module) -> nn.Module:
        return _replace(layer, lambda hidden, *_, **__: hidden)


def _hand_on(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
    raise _HandedOnError(hidden)


def _number(layers: Sequence[nn.Module]) -> dict[str, nn.Module]:
    return {str(number): layer for number, layer in enumerate(layers)}


def _replace(layer: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """Return what the model takes for the layer, without anything in it, and with another forward."""
    stub: Any = copy.copy(layer)
    stub._modules, stub._parameters, stub._buffers = {}, {}, {}
    # Its forward is no part of what is run again in a backward.
    stub.gradient_checkpointing = False
    stub.forward = forward
    module: nn.Module = stub
    return module


def _forget_parameters(part: nn.Module) -> None:
    # Not replaced by None: a name that is there has to be in the state dict.
    part._parameters.clear()


def _make_blank(width: int) -> Callable[..., Tensor]:
    """Return a forward that gives something of the right shape, of which nothing is used."""

    def give_blank(first: Tensor, *_: Any, **__: Any) -> Tensor:
        shape = first.shape[:-1] if first.is_floating_point() else first.shape
        return torch.zeros((), device=first.device).expand(*shape, width)

    return give_blank


def _watch_forward(
    model: nn.Module, layers: Sequence[nn.Module], run: Callable[[], object]
) -> tuple[dict[nn.Module, int], list[nn.Module], int]:
    """Return what comes before the layers -> its width, what comes after them, and the width of hidden states."""
    within = {part for layer in layers for part in layer.modules()}
    others = [part for part in model.modules() if part not in within and part._parameters]
    front: dict[nn.Module, int] = {}
    widths: list[int] = []

    def note(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not widths:
            is_plain = bool(inputs) and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)
            if not is_plain or output.ndim != inputs[0].ndim + (not inputs[0].is_floating_point()):
                raise UnfitModelError(
                    f"{type(model).__name__} prepares what its layers take in a way that only a whole model can; use "
                    "strategy ddp"
                )
            front[part] = output.shape[-1]

    def note_layer(part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, Tensor) or not inputs or inputs[0].shape != output.shape or output.ndim != 3:
            raise UnfitModelError(f"{type(model).__name__} hands on more than hidden states; use strategy ddp")
        widths.append(output.shape[-1])

    hooks = [part.register_forward_hook(note) for part in others]
    hooks += [layer.register_forward_hook(note_layer) for layer in layers]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return front, [part for part in others if part not in front], widths[0]


def count_multiplied(part: nn.Module) -> int:
    """Return by how many weights each position is multiplied: about what the part takes of a step's time."""
    looked_up = {
        id(parameter) for inner in part.modules() if isinstance(inner, nn.Embedding) for parameter in inner.parameters()
    }
    if isinstance(part, nn.Linear):
        # A head may have the weights of an embedding.
        return part.weight.numel()
    return sum(
        parameter.numel() for parameter in part.parameters() if parameter.ndim >= 2 and id(parameter) not in looked_up
    )


def balance(costs: Sequence[int], num_stages: int, *, before: int = 0, after: int = 0) -> list[range]:
    """Return which parts each stage has, one after another and at least one each, the costliest as cheap as can be.

    `before`, `after`: what the first and the last stage cost beside their parts. Of equals, earlier stages have more.
    """
    total = [0, *itertools.accumulate(costs)]

    @functools.cache
    def split(stage: int, end: int) -> tuple[int, list[range]]:
        """Return what the costliest of the first stages costs, which have the parts before the end, and their parts."""
        if not stage:
            return 0, []
        extra = (before if stage == 1 else 0) + (after if stage == num_stages else 0)
        results = [
            (max(split(stage - 1, start)[0], total[end] - total[start] + extra), -start)
            for start in (range(stage - 1, end) if stage > 1 else [0])
        ]
        most, start = min(results)
        return most, [*split(stage - 1, -start)[1], range(-start, end)]

    return split(num_stages, len(costs))[1]
