"""What was found of one update of the ranks, as the certificate has it; standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """How far tensors are from the expected ones, all parameters together."""

    max_abs: float
    """Largest absolute difference of an element."""
    relative_l2: float
    """L2 norm of the differences / L2 norm of the expected tensors, or of what an update changed; summed in fp64."""
    is_bitwise_equal: bool
    """Whether all bits agree."""
    largest_in: str | None
    """The parameter with the largest L2 norm of differences; None if they are equal."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was found of one update, for one kind of tensor."""

    found: Difference
    """The ranks against one process; of weights, relative to what the update changed."""
    noise_floor: float
    """Gradient and statistics: the largest relative L2 difference that another order makes. Weights: one rounding of
    each."""
    tolerance: float
    """Largest relative L2 difference allowed."""

    @property
    def excess(self) -> float:
        """How many times the tolerance the difference is; NaN, and any where none is allowed, as infinitely many."""
        if self.tolerance == 0:
            return 0.0 if self.found.relative_l2 == 0 else float("inf")
        ratio = self.found.relative_l2 / self.tolerance
        return ratio if ratio == ratio else float("inf")


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update of the ranks against that of one process from the same state."""

    step: int
    """From 1."""
    gradient: Compared | None
    """None if it is finite on neither side, as an overflow of fp16 leaves it; no update is then made."""
    weights: Compared | None
    """None without a gradient, and where the ranks left no weights behind."""
    statistics: Compared | None = None
    """Of batch normalisation, running; None where the model has none, and where the ranks left no weights behind."""
