"""Which updates an optimizer made, told by its own state: read before a block and after it, while no clock runs."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from training.step.optimizer import get_local_rows


class Updates:
    """Counts from its making on, parameter by parameter of those that this rank updates."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._calls: Counter[Tensor] = Counter()
        self._hook = optimizer.register_step_post_hook(self._count_call)
        self._before = self._read()

    def measure(self) -> dict[str, Any]:
        """Return the fewest and the most updates that one of its parameters has had since, and their elements.

        `moment_gain` is by how much their squared gradients' means grew beyond what the old ones had become: the same,
        to the rounding of sums, for the same gradients, whatever was before. None for an optimizer without them.
        """
        self._hook.remove()
        now, numbers, gain, num_elements = self._read(), [], 0.0, 0
        for part, (steps, squares) in now.items():
            if not (size := get_local_rows(part).numel()):
                continue
            before, old_squares = self._before.get(part, (0.0, 0.0))
            numbers.append(round(steps - before))
            num_elements += size
            gain += squares - self._decay ** (steps - before) * old_squares
        return {
            "updates": [min(numbers, default=0), max(numbers, default=0)],
            "num_updated": num_elements,
            "moment_gain": gain if self._decay else None,
        }

    def _count_call(self, *_: Any) -> None:
        self._calls.update(
            part for group in self._optimizer.param_groups for part in group["params"] if part.grad is not None
        )

    @property
    def _decay(self) -> float:
        betas: tuple[float, float] = self._optimizer.param_groups[0].get("betas", (0.0, 0.0))
        return betas[1]

    def _read(self) -> dict[Tensor, tuple[float, float]]:
        """Return parameter -> (updates so far, sum of its squared gradients' means)."""
        state = self._optimizer.state
        # An engine that shards may lend its parameters to the optimizer for the update alone.
        parts = list(state or self._calls) or [one for group in self._optimizer.param_groups for one in group["params"]]
        kept = {part: state.get(part, {}) for part in parts}
        if not self._decay:
            # Nothing is counted by SGD, whose update of a parameter without a gradient is none, too.
            return {part: (float(self._calls[part]), 0.0) for part in kept}
        return {part: (float(one.get("step", 0.0)), _sum(one.get("exp_avg_sq"))) for part, one in kept.items()}


def _sum(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float(get_local_rows(tensor).sum(dtype=torch.float64))
