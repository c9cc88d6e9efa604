"""How steeply something grows."""

import math
from collections.abc import Sequence
from statistics import linear_regression


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return b of value = a * size^b through the points, by least squares of the logarithms; 1.0 is linear.

    Raises ValueError for fewer than two sizes or a value that is not above 0.
    """
    if len(set(sizes)) < 2 or len(sizes) != len(values) or min([*sizes, *values]) <= 0:
        raise ValueError(
            f"exponent: got sizes {list(sizes)} and values {list(values)}; needed: two or more, all above 0"
        )
    return linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values]).slope
