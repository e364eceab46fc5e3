"""Sizes solved for what a model costs: the state's first (K and V of a head), then the width, then the MLP or V.

A written size is where the search begins and what it stays near. Round sizes are tried first: multiples of 16, then of
8, 4, 2, 1. Counts are the exact ones of `archsearch.mixers.models.counts`.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

from archsearch.mixers.layer.options import Vector
from archsearch.mixers.models.options import MULTIPLE
from archsearch.spaces.sizes import Sizes

STATE = "state_bytes"
GRAINS = (16, 8, 4, 2, 1)
LEAST_HEAD = 4
"""The smallest K or V that is tried."""

NEAR_RATIO = 1.5
"""How far the MLP's ratio leaves what is written before less round widths are tried."""

WIDEST = 1 << 16
POWER = 1.6
"""Costs grow with the width to the first power, of embeddings, to the second, of maps: between them."""

STEPS = 12
"""Of the search for the width at the written ratio."""

SPREAD = 3.0
"""How far the MLP's ratio, or V / K, may leave what is written, as a factor either way."""

NEAR = 1.15
"""How far V / K leaves what is written before less round sizes are tried."""


def solved(start: Sizes) -> Sizes:
    """The sizes nearest to `start` that meet its targets; where none do, those that come nearest."""
    if start.fits:
        return start
    base = _with_state(start)
    if STATE in start.targets and base.error(STATE) > start.tolerance and not _has_partners(base):
        rest = {name: target for name, target in start.targets.items() if name != STATE}
        return replace(_nearest(replace(base, targets=rest)), targets=start.targets)
    return _nearest(base)


def _nearest(start: Sizes) -> Sizes:
    tried = list(_until_fitting(_tries(start)))
    return min(tried, key=lambda sizes: (not sizes.fits, sizes.worst))


def _until_fitting(tries: Iterator[Sizes]) -> Iterator[Sizes]:
    for sizes in tries:
        yield sizes
        if sizes.fits:
            return


def _tries(start: Sizes) -> Iterator[Sizes]:
    """`start`, then other sizes, the likeliest first."""
    yield start
    leading = next((name for name in start.targets if name != STATE), None)
    if leading is None:
        return
    far: list[Sizes] = []
    for width in _widths(start, leading):
        sizes = _filled(_with_state(start.with_width(width)), leading)
        if _is_near(sizes, start):
            yield sizes
        else:
            far.append(sizes)
    yield from far


def _is_near(sizes: Sizes, start: Sizes) -> bool:
    """Whether the MLP's ratio is near the written one."""
    written = start.model.mlp_ratio
    return not written or 1 / NEAR_RATIO <= sizes.model.mlp_ratio / written <= NEAR_RATIO


# The state


def _with_state(start: Sizes) -> Sizes:
    """K and V solved for the state's bytes, near the written V / K."""
    if STATE not in start.targets or start.error(STATE) <= start.tolerance:
        return start
    best = start
    ratio = start.layer.expand_v
    middle = _key_for(start, ratio)
    for spread, grain in itertools.product((NEAR, SPREAD), GRAINS):
        near = [_with_value_for(start, STATE, key, grain) for key in _around(middle, grain, 2, LEAST_HEAD)]
        found = [s for s in near if s is not None and 1 / spread <= s.layer.expand_v / ratio <= spread]
        fitting = [sizes for sizes in found if sizes.error(STATE) <= start.tolerance]
        if fitting:
            return min(fitting, key=lambda sizes: abs(math.log(sizes.layer.expand_v / ratio)))
        best = min([best, *found], key=lambda sizes: sizes.error(STATE))
    return best


def _key_for(start: Sizes, ratio: float) -> int:
    """K at which the state has its bytes, V / K as written: bytes are a polynomial of second degree in K."""
    one, two, three = (start.with_head(key, max(1, round(key * ratio))).cost(STATE) for key in (16, 32, 48))
    if one is None or two is None or three is None:
        return start.head[0]
    square = (one - 2 * two + three) / 2
    even = two - one - 3 * square
    rest = one - even - square - start.targets[STATE]
    if square <= 0:
        return start.head[0]
    root = (-even + math.sqrt(max(0.0, even * even - 4 * square * rest))) / (2 * square)
    return max(LEAST_HEAD, round(16 * root))


def _with_value_for(start: Sizes, quantity: str, key: int, grain: int) -> Sizes | None:
    """V, a multiple of `grain`, so that K and V meet a target that grows evenly with V."""
    one, two = (start.with_head(key, value).cost(quantity) for value in (key, 2 * key))
    if one is None or two is None or two <= one:
        return None
    value = key + (start.targets[quantity] - one) * key / (two - one)
    return start.with_head(key, max(grain, LEAST_HEAD, grain * round(value / grain)))


# The width


def _widths(start: Sizes, leading: str) -> Iterator[int]:
    """Widths to try, nearest to the one that needs no other MLP first, round ones before others."""
    unit = _unit(start)
    units = max(1, start.model.width // unit)
    middle = unit * _meeting(lambda number: _with_state(start.with_width(unit * number)), leading, units)
    seen: set[int] = set()
    for grain in GRAINS:
        step = math.lcm(unit, grain)
        for width in _around(middle, step, 12 if len(start.targets) > 1 else 6, step):
            if width not in seen:
                seen.add(width)
                yield width


def _unit(start: Sizes) -> int:
    """What every width is a multiple of: whole heads, of even width where positions turn pairs of channels."""
    heads = start.model.heads
    partners = _has_partners(start)
    if start.layer.head_dim is not None:
        return 2 * heads if partners else 1
    rotary = any(isinstance(source, Vector) and source.rotary for source in start.layer.operands.values())
    whole = Fraction(start.layer.expand_v).limit_denominator(64).denominator
    return heads * math.lcm(whole, 2 if partners or rotary else 1)


def _has_partners(sizes: Sizes) -> bool:
    """Whether layers of the pattern are no rule; what they keep may depend on the width."""
    return any(entry != "rule" for entry in sizes.model.entries)


def _filled(sizes: Sizes, leading: str) -> Sizes:
    """What the width leaves over goes into the MLP, or into V where there is none and the state is free."""
    if sizes.error(leading) == math.inf:
        return sizes
    if sizes.model.mlp_ratio:
        return _with_mlp(sizes, leading)
    return sizes if STATE in sizes.targets else _with_value(sizes, leading)


def _with_mlp(sizes: Sizes, leading: str) -> Sizes:
    """The MLP's channels solved: costs grow evenly with them."""
    ratio = sizes.model.mlp_ratio
    small, large = sizes.with_hidden(MULTIPLE), sizes.with_hidden(2 * MULTIPLE)
    one, two = small.cost(leading), large.cost(leading)
    assert one is not None and two is not None
    hidden = MULTIPLE * max(1, round(1 + (sizes.targets[leading] - one) / (two - one)))
    bounds = [MULTIPLE * max(1, round(sizes.model.width * r / MULTIPLE)) for r in (ratio / SPREAD, ratio * SPREAD)]
    return sizes.with_hidden(min(max(hidden, bounds[0]), bounds[1]))


def _with_value(sizes: Sizes, leading: str) -> Sizes:
    """V solved, near the written one."""
    written = sizes.head[1]
    one, two = sizes.with_value(written).cost(leading), sizes.with_value(2 * written).cost(leading)
    if one is None or two is None or two <= one:
        return sizes
    middle = round(written + (sizes.targets[leading] - one) * written / (two - one))
    near = [sizes.with_value(value) for value in range(middle - 1, middle + 2) if written <= value * SPREAD]
    return min([sizes, *near], key=lambda each: each.error(leading))


# Search


def _meeting(make: Callable[[int], Sizes], quantity: str, start: int) -> int:
    """The number near which sizes cost what the target says. Costs grow with its first to second power, or so."""
    number = start
    for _ in range(STEPS):
        sizes = make(number)
        cost = sizes.cost(quantity)
        if cost is None:
            return number
        step = (sizes.targets[quantity] / cost) ** (1 / POWER)
        nearer = min(max(1, round(number * step)), WIDEST)
        if nearer == number:
            break
        number = nearer
    return number


def _around(middle: int, step: int, steps: int, least: int) -> Iterator[int]:
    """Multiples of `step` near `middle`, nearest first, at least `least`."""
    nearest = round(middle / step)
    multiples = sorted(range(nearest - steps, nearest + steps + 1), key=lambda m: abs(m * step - middle))
    return (m * step for m in multiples if m * step >= least)
