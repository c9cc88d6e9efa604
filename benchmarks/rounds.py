"""Rounds of interleaved blocks of things that are not cells of a comparison, until their ratios are known well enough.

A round is a turn and its mirror image: every arm has two blocks, which lie symmetrically about its middle.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tasks.measuring.intervals import estimate_ratio
from tasks.measuring.turns import generate_turns
from tasks.records.estimate import Estimate

_log = logging.getLogger(__name__)

LOOK_CONFIDENCE = 0.97
"""Of each look: who looks several times and stops at the first narrow interval ends more often where it happened to be
underestimated."""
GROWTH = 1.5
"""Each look comes after this many times the rounds of the one before."""
MIN_ROUNDS = 10
"""Rounds before the first look, and those that are run whatever the time budget says, unless told otherwise."""
FEWEST_ROUNDS = 6
"""Below, no interval is given."""

Look = Callable[[float], Mapping[str, Estimate]]
"""Confidence -> the interval of each comparison, from all rounds so far."""


def generate_rounds(arms, *, seed):
    """Yield rounds without end: the arms in random order, then in the reverse of it (B A C C A B)."""
    turns = generate_turns(arms, seed=seed)
    while True:
        yield next(turns) + next(turns)


def compute_ratio(numerator, denominator, *, confidence=0.95):
    """Return mean(numerator) / mean(denominator) with its interval; entry i of both comes from the same round."""
    return estimate_ratio([numerator], [denominator], confidence=confidence)


def average_pairs(blocks):
    """Return the means of an arm's blocks round by round: of the first and the second, the third and the fourth."""
    return [(first + second) / 2 for first, second in zip(blocks[::2], blocks[1::2], strict=True)]


@dataclass(kw_only=True)
class Stopping:
    """Says after each round whether to go on, and at the end why not."""

    target_half_width: float
    """Relative half-width that the widest interval shall have, 0..1."""
    max_seconds: float
    """Time budget for all rounds; no round is begun that would, at the mean of those before, end after it."""
    min_rounds: int = MIN_ROUNDS
    """Rounds before the first look; they are run even if the budget is too small for them."""
    intervals: Mapping[str, Estimate] = field(default_factory=dict, init=False)
    """What the last look found: at the end, the intervals to report."""
    reason: str = field(default="", init=False)
    """Why it stopped, in words; empty while it goes on."""
    _next_look: int = field(default=0, init=False)

    def __post_init__(self):
        if not 0 < self.target_half_width < 1:
            raise ValueError(f"target_half_width must lie between 0 and 1; got {self.target_half_width}")
        if self.min_rounds < FEWEST_ROUNDS:
            raise ValueError(
                f"min_rounds must be at least {FEWEST_ROUNDS}, or there is no interval; got {self.min_rounds}"
            )
        self._next_look = self.min_rounds

    def goes_on(self, num_rounds, *, seconds, look):
        """Return whether another round is to be run, after `num_rounds` that took `seconds` together.

        `look` is called with the confidence to use, at few fixed numbers of rounds and when the budget is spent.
        """
        if num_rounds < self.min_rounds:
            return True
        is_spent = seconds * (num_rounds + 1) / num_rounds > self.max_seconds
        if num_rounds < self._next_look and not is_spent:
            return True
        self.intervals = look(LOOK_CONFIDENCE)
        while self._next_look <= num_rounds:
            self._next_look = math.ceil(self._next_look * GROWTH)
        widest = max((interval.relative_half_width for interval in self.intervals.values()), default=0.0)
        _log.info("after %d rounds in %.0f s: ±%.1f %%", num_rounds, seconds, 100 * widest)
        if not self.intervals:
            self.reason = f"nothing to compare with: {num_rounds} rounds of the only cell"
        elif widest <= self.target_half_width:
            self.reason = f"interval narrow enough: ±{widest:.1%} after {num_rounds} rounds".replace("%", " %")
        elif is_spent:
            self.reason = self._explain_spent_budget(num_rounds, seconds, widest)
        return not self.reason

    def _explain_spent_budget(self, num_rounds, seconds, widest):
        """Return why the budget ended it, and how many rounds the target asks for: the width falls with their root."""
        spent = f"time budget of {self.max_seconds:.0f} s spent"
        if num_rounds == self.min_rounds and seconds > self.max_seconds:
            spent = f"time budget of {self.max_seconds:.0f} s exceeded ({seconds:.0f} s for the least number of rounds)"
        if not math.isfinite(widest):
            return f"{spent} after {num_rounds} rounds; a value of 0 has no relative width"
        needed = math.ceil(num_rounds * (widest / self.target_half_width) ** 2)
        text = f"{spent} at ±{widest:.1%} after {num_rounds} rounds; about {needed} would be needed"
        return f"{text} for ±{self.target_half_width:.1%}".replace("%", " %")
