"""How steeply something grows."""

import math
from collections.abc import Sequence


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return b of value = a * size^b through the points, by least squares of the logarithms; 1.0 is linear.

    Raises ValueError for fewer than two sizes or a value that is not above 0.
    """
    if len(set(sizes)) < 2 or len(sizes) != len(values) or min([*sizes, *values]) <= 0:
        raise ValueError(
            f"exponent: got sizes {list(sizes)} and values {list(values)}; needed: two or more, all above 0"
        )
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    middle_x, middle_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    slope = math.fsum((one - middle_x) * (other - middle_y) for one, other in zip(x, y, strict=True))
    return slope / math.fsum((one - middle_x) ** 2 for one in x)
