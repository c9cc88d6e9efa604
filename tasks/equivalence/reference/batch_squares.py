"""Squared norms of a batch's gradients: as they are, or in the coordinates in which AdamW's update is a plain one.

An update w - r m / s, s the root of AdamW's second moments, is one of plain gradients for coordinates that are
stretched by the root of s: there the gradient is g / sqrt(s). AdamW takes a batch's own gradient into s before it
divides by it, so that a number of which little or nothing was seen before, such as the embedding of a rare word, is
moved a bounded way. Without that such numbers, divided by nearly 0, would be all there is to see.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.step.optimizer import list_state_differences

_SQUARES = "exp_avg_sq"
_EPS = 1e-8
"""What AdamW adds to s."""

Part = list[Tensor | None]
"""Of one micro-batch, or of several: the gradient of every parameter."""


class BatchSquares(NamedTuple):
    """Squared norms of one batch's gradients, each of a mean over labels."""

    num_samples: int
    """Samples of the batch."""
    num_labels: Sequence[int]
    """Labels of each part that has one."""
    mean_square: float
    """Squared L2 norms of the parts' gradients: their mean, weighted by labels."""
    square_of_all: float
    """Squared L2 norm of the whole batch's gradient."""


@dataclass
class SecondMoments:
    """AdamW's second moments at one point of a training. They go on with every batch, while no weight does."""

    beta2: float
    """Share that a step keeps."""
    max_norm: float
    """What the L2 norm of a gradient is scaled down to before AdamW sees it."""
    squares: list[Tensor | None] = field(default_factory=list)
    """By parameter; None where no gradient was seen yet. Empty: at the start of a training."""
    steps: list[float] = field(default_factory=list)
    """Of each, how many steps they are of."""

    def take(self, gradient: Part) -> Iterator[Tensor | None]:
        """Remember a batch's gradient; yield, of one parameter after another, 1 / s: what a squared gradient counts.

        What is remembered waits in the host's memory: a card that a training fits on has no room for it here.
        """
        seen = [part for part in gradient if part is not None]
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in seen])))
        clipped = min(1.0, self.max_norm / (norm + 1e-6))
        self.squares = self.squares or [None] * len(gradient)
        self.steps = self.steps or [0.0] * len(gradient)
        for place, part in enumerate(gradient):
            if part is None:
                yield None
                continue
            before = self.squares[place]
            own = (part * clipped).square_().mul_(1 - self.beta2)
            now = own if before is None else own.add_(before.to(part.device), alpha=self.beta2)
            self.squares[place] = now.cpu()
            self.steps[place] += 1
            yield (now / (1 - self.beta2 ** self.steps[place])).sqrt_().add_(_EPS).reciprocal_()

    def weigh(self, gradient: Part, squares: Part) -> tuple[float, float]:
        """Remember a batch's gradient; return the sums of its squares, and of these squares, each times what it counts.

        In fp64, one parameter after another, so that no more than one is in memory a second time.
        """
        of_gradient = of_squares = 0.0
        for part, squared, counts in zip(gradient, squares, self.take(gradient), strict=True):
            if part is not None and squared is not None and counts is not None:
                of_gradient += float((part.square() * counts).sum(dtype=torch.float64))
                of_squares += float((squared * counts).sum(dtype=torch.float64))
        return of_gradient, of_squares


def read_second_moments(
    state: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    named: Mapping[str, Tensor],
    *,
    beta2: float,
    max_norm: float,
) -> "SecondMoments | str":
    """Return the second moments of what a checkpoint's state.pt holds, or in one line why it has none that fit.

    `weights`: what the checkpoint names, in its order; `named`: the parameters, in the order of the gradients to come.
    """
    order = [name for name in weights if name in named]
    groups = [[name for name in order if named[name].ndim >= 2], [name for name in order if named[name].ndim < 2]]
    pairs = [[(name, named[name]) for name in group] for group in groups if group]
    try:
        differences = list_state_differences(state, pairs, [_SQUARES])
        if differences:
            return f"its optimizer's state does not fit the model: {differences[0]}"
        kept = state["optimizer"]["state"]
        places = {name: place for place, name in enumerate(name for group in groups for name in group)}
        if not any(_SQUARES in kept.get(place, {}) for place in places.values()):
            return "its optimizer's state has no second moments"
        squares = [kept.get(places[name], {}).get(_SQUARES) for name in named]
        steps = [float(kept.get(places[name], {}).get("step", 0.0)) for name in named]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return f"beside it stands no optimizer's state: {type(error).__name__}: {error}"
    return SecondMoments(beta2, max_norm, squares, steps)


def square(gradient: Part) -> float:
    """Return the squared L2 norm, each tensor's share of it added up in fp64."""
    return sum(float(torch.linalg.vector_norm(part)) ** 2 for part in gradient if part is not None)


def add_squares(sums: Part | None, gradient: Part, num_labels: int) -> Part:
    """Add the squares of a sum over so many labels, divided by their number, to `sums`, in place; None: there are none.

    One parameter after another, as above.
    """
    if sums is None:
        return [None if part is None else part.square().div_(num_labels) for part in gradient]
    return add_in_place(sums, (None if part is None else part.square().div_(num_labels) for part in gradient))


def add_up(parts: Iterable[Part]) -> Part:
    """Return the sum, in the tensors of the first; none is held any longer while the next is made."""
    total: Part | None = None
    for part in parts:
        total = part if total is None else add_in_place(total, part)
        del part
    assert total is not None, "at least one"
    return total


def add_in_place(left: Part, right: Iterable[Tensor | None]) -> Part:
    """Return the sum, which is in the tensors of `left` where that has one."""
    return [a if b is None else b if a is None else a.add_(b) for a, b in zip(left, right, strict=True)]
