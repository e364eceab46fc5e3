"""Values of options, refused where they cannot be meant; holes and None pass."""

from __future__ import annotations

import math
from collections.abc import Callable

from archsearch.errors import ConfigError
from archsearch.holes import is_hole

LARGEST_SIZE = 1 << 16
"""Of channels, heads, ranks and tokens of a convolution: beyond it there is a slip of the pen, and no machine."""

LARGEST_RATIO = 256
"""Of one size to another."""


def need(
    key: str,
    value: object,
    condition: str,
    holds: Callable[[float], bool],
    *,
    whole: bool = False,
    most: float | None = None,
) -> None:
    """A number for which `condition` holds, at most `most`, by default `LARGEST_SIZE` of a whole one; None and holes
    pass.
    """
    if value is None or is_hole(value):
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"{key} must be {'a whole number' if whole else 'a number'} {condition}; got {value!r}")
    if not (holds(value) and math.isfinite(value)):
        raise ConfigError(f"{key} must be {condition}; got {value}")
    limit = LARGEST_SIZE if whole and most is None else most
    if limit is not None and value > limit:
        raise ConfigError(f"{key} must be <= {limit:,}; got {value:,}")


def choice(key: str, value: object, words: tuple[str, ...]) -> None:
    """One of some words; what is no string passes."""
    if isinstance(value, str) and value not in words:
        raise ConfigError(f"{key} must be one of {', '.join(words)}; got {value!r}")


def bounded(key: str, start: object, bound: object) -> None:
    """A start that a number inside (0, bound) can take; any finite one where there is no bound."""
    need(f"{key}.bound", bound, "> 0", lambda x: x > 0)
    if isinstance(bound, int | float):
        need(f"{key}.start", start, f"in (0, {bound:g})", lambda x: 0 < x < bound)
    else:
        need(f"{key}.start", start, "finite", lambda x: True)


def ascending(key: str, low: object, high: object, *, above: float) -> None:
    """Two ends of a range, `above` < low < high."""
    if isinstance(low, int | float) and isinstance(high, int | float) and not above < low < high:
        floor = {0.0: "0 < ", -math.inf: ""}.get(above, "0 <= ")
        raise ConfigError(f"{key} needs {floor}low < high; got low={low}, high={high}")
