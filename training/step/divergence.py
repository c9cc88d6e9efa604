"""A loss that is finite and still has gone astray: the rule that stops it."""

from training.process.failure import DivergedError

MULTIPLE = 2.0
NATS = 1.0
"""A smoothed loss above so many times the segment's first, and above that by so many nats per token, has gone astray.

Both, since small losses vary by multiples and large ones by nats."""
NUM_STEPS = 5
"""For so many steps on end."""
_KEPT = 0.8
"""What the smoothed loss keeps of itself in a step: it remembers about five."""


class DivergenceRule:
    """Takes the losses of a segment in order; the first one is where it comes from.

    That is the loss before any update of the segment, on rows of the same range. The same on all ranks, since the
    losses are.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._smoothed = 0.0
        self._num_above = 0

    def take(self, step: int, loss: float, *, num_targets: int) -> None:
        """Take the next step's loss, nats per token; raises DivergedError once the rule says so.

        A step without a target has no loss, and logs 0: as the first one it would have every other go astray.
        """
        if not num_targets:
            return
        if self._first is None:
            self._first = self._smoothed = loss
        self._smoothed = _KEPT * self._smoothed + (1 - _KEPT) * loss
        allowed = max(MULTIPLE * self._first, self._first + NATS)
        self._num_above = self._num_above + 1 if self._smoothed > allowed else 0
        if self._num_above >= NUM_STEPS:
            raise DivergedError(
                f"diverged at step {step}: the smoothed loss is {self._smoothed:.4g} and has been above {allowed:.4g} "
                f"for {NUM_STEPS} steps, the segment began at {self._first:.4g}; nothing of it was saved after the "
                "last checkpoint; lower learning_rate, or use more warmup_steps"
            )
