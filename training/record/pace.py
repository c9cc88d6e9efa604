"""How long a rank takes for what it does without the others: what tells a slow rank from those that wait for it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from training.data.batches import MicroBatch
from training.process.heartbeat import StepSection


class Pace:
    """Per step, the seconds from the end of one exchange of gradients to the last backward before the next.

    In between a rank waits for nobody. On CUDA they are seconds of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._mark: Callable[[], Any] = time.perf_counter
        self._between: Callable[[Any, Any], float] = lambda earlier, later: later - earlier
        if device.type == "cuda":
            self._mark = _mark_device_time
            self._between = lambda earlier, later: earlier.elapsed_time(later) / 1000
        self.restart()

    def restart(self) -> None:
        """Forget what was noted; the first step begins now."""
        self._spans: list[tuple[Any, Any]] = []
        self._began = self._last_backward = self._mark()

    def enter(self, section: StepSection) -> None:
        """Note what matters of the rank's way through a step."""
        if section is StepSection.BACKWARD:
            self._last_backward = self._mark()
        elif section is StepSection.UPDATE:
            self._spans.append((self._began, self._last_backward))
            self._began = self._mark()

    def seconds(self) -> list[float]:
        """Return the seconds of every step since `restart`; the device must have done all."""
        return [self._between(began, last) for began, last in self._spans]


def count_own_positions(micro_batches: Sequence[MicroBatch]) -> int:
    """Return how much work those seconds hold: positions once for each forward and twice for each backward but the
    last."""
    sizes = [part.num_positions for part in micro_batches]
    return 3 * sum(sizes) - 2 * sizes[-1]


def _mark_device_time() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
