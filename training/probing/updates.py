"""Which updates an optimizer made, told by its own state: read before a block and after it, while no clock runs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from training.step.optimizer import get_local_rows


class Updates:
    """Counts from its making on, parameter by parameter of those that this rank updates; moments then begin at 0."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, counted_elsewhere: Sequence[Tensor] = ()) -> None:
        self._optimizer = optimizer
        self._elsewhere = {id(part) for part in counted_elsewhere}
        """Parameters of which another rank counts the moments."""
        self._calls: Counter[Tensor] = Counter()
        self._hook = optimizer.register_step_post_hook(self._count_call)
        self._before = self._count()
        for _, moment in self._list_moments():
            moment.zero_()

    def measure(self) -> dict[str, Any]:
        """Return the fewest and the most updates that one of its parameters has had since, and their elements.

        `moment_squares` is the sum of the squares of all moments: the same, to the rounding of sums, for the same
        gradients, whatever was before. 0 for an optimizer without moments.
        """
        self._hook.remove()
        made = {part: number for part, number in self._count().items() if get_local_rows(part).numel()}
        numbers = [round(number - self._before.get(part, 0.0)) for part, number in made.items()]
        norms = [
            float(torch.linalg.vector_norm(moment, dtype=torch.float64))
            for part, moment in self._list_moments()
            if id(part) not in self._elsewhere
        ]
        return {
            "updates": [min(numbers, default=0), max(numbers, default=0)],
            "num_updated": sum(get_local_rows(part).numel() for part in made),
            "moment_squares": sum(norm**2 for norm in norms),
        }

    def _count_call(self, *_: Any) -> None:
        self._calls.update(
            part for group in self._optimizer.param_groups for part in group["params"] if part.grad is not None
        )

    def _count(self) -> dict[Tensor, float]:
        """Return parameter -> updates so far: by the state's count, or by those that were seen here."""
        state = self._optimizer.state
        # An engine that shards may lend its parameters to the optimizer for the update alone.
        parts = list(state or self._calls) or [
            param for group in self._optimizer.param_groups for param in group["params"]
        ]
        return {part: float(state.get(part, {}).get("step", self._calls[part])) for part in parts}

    def _list_moments(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield parameters, and this rank's rows of what the optimizer keeps of their gradients: what is as large."""
        for part, kept in self._optimizer.state.items():
            for name, item in kept.items():
                if name != "step" and isinstance(item, Tensor) and item.shape == part.shape:
                    yield part, get_local_rows(item)
