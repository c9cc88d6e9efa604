"""Rounds of interleaved blocks of things that are not cells of a comparison, until their ratios are known well enough.

A round is a turn and its mirror image: every arm has two blocks, which lie symmetrically about its middle.
"""

import math
from dataclasses import dataclass, field

from tasks.measuring.intervals import estimate_ratio
from tasks.measuring.turns import generate_turns
from tasks.records.estimate import Estimate

LOOK_CONFIDENCE = 0.97
"""Of each look: who looks several times and stops at the first narrow interval ends more often where it happened to be
underestimated."""
GROWTH = 1.5
"""Each look comes after this many times the rounds of the one before."""
MIN_ROUNDS = 10
"""Rounds before the first look, run whatever the time budget says."""
FEWEST_ROUNDS = 6
"""Below, no interval is given."""
HALF_WIDTH = 0.02
"""Relative half-width, 0..1, of an interval that is narrow enough."""


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

    max_seconds: float
    """Time budget for all rounds; no round is begun that would, at the mean of those before, end after it."""
    min_rounds: int = MIN_ROUNDS
    """Rounds before the first look; they are run even if the budget is too small for them."""
    interval: Estimate | None = field(default=None, init=False)
    """What the last look found: at the end, the interval to report."""
    reason: str = field(default="", init=False)
    """Why it stopped, in words; empty while it goes on."""
    _next_look: int = field(default=0, init=False)

    def __post_init__(self):
        self._next_look = self.min_rounds

    def goes_on(self, num_rounds, *, seconds, look):
        """Return whether another round is to be run, after `num_rounds` that took `seconds` together.

        `look` (confidence -> interval of the ratio, from all rounds so far) is called at few fixed numbers of rounds
        and when the budget is spent.
        """
        is_spent = seconds * (num_rounds + 1) / num_rounds > self.max_seconds
        if num_rounds < self.min_rounds or (num_rounds < self._next_look and not is_spent):
            return True
        self.interval = look(LOOK_CONFIDENCE)
        while self._next_look <= num_rounds:
            self._next_look = math.ceil(self._next_look * GROWTH)
        width = self.interval.relative_half_width
        if width <= HALF_WIDTH:
            self.reason = f"interval narrow enough: ±{width:.1%} after {num_rounds} rounds".replace("%", " %")
        elif is_spent:
            spent = f"time budget of {self.max_seconds:.0f} s spent"
            if num_rounds == self.min_rounds and seconds > self.max_seconds:
                spent = (
                    f"time budget of {self.max_seconds:.0f} s exceeded ({seconds:.0f} s for the least number of rounds)"
                )
            # The width falls with the root of the rounds.
            needed = math.ceil(num_rounds * (width / HALF_WIDTH) ** 2)
            text = f"{spent} at ±{width:.1%} after {num_rounds} rounds; about {needed} would be needed"
            self.reason = f"{text} for ±{HALF_WIDTH:.1%}".replace("%", " %")
        return not self.reason
