"""Student's t distribution for whole degrees of freedom: tail probability and quantile.

The closed sums of Abramowitz and Stegun, 26.7.3 and 26.7.4; exact but for rounding, about 1e-15 of a probability.
"""

import functools
import math


def two_sided(t: float, freedom: int) -> float:
    """The probability that a t of `freedom` degrees, >= 1, lies further from 0 than `t`."""
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= (power - 1) / power * cosine**2
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1 - inside)


@functools.lru_cache(maxsize=256)
def critical(level: float, freedom: int) -> float:
    """The t such that a share `level`, in (0, 1), of the distribution lies between -t and t."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - level:
        high *= 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2
