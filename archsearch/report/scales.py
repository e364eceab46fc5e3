"""From numbers to places on a drawing: ranges, ticks and their labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis. label: with its unit. log: places by the logarithm; values must be positive.

    percent: values are shares, shown as percent. points: they are differences of shares, shown in hundredths. include:
    values that must be seen.
    """

    label: str
    log: bool = False
    percent: bool = False
    points: bool = False
    include: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis with its range, laid over the pixels `start` .. `end`."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = (
            (_log(x) for x in (self.low, self.high, value)) if self.axis.log else (self.low, self.high, value)
        )
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def inside(self, value: float) -> float:
        """The pixel of a value, or of the end of the range that it lies beyond."""
        return self.place(min(max(value, self.low), self.high))

    def ticks(self) -> list[float]:
        """Round values in the range, about five."""
        return log_ticks(self.low, self.high) if self.axis.log else linear_ticks(self.low, self.high)

    def label(self, value: float) -> str:
        """A tick's text."""
        if self.axis.percent or self.axis.points:
            return f"{100 * value:.4g}" + (" %" if self.axis.percent else "")
        return compact(value, next((n for n in range(3, 7) if _is_exact(value, n)), 3))


def fitted(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """A scale that shows all finite `values` with a little room around them."""
    seen = [v for v in [*values, *axis.include] if math.isfinite(v) and (v > 0 or not axis.log)] or [1.0]
    low, high = min(seen), max(seen)
    if axis.log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return Scale(axis, low / room, high * room, start, end)
    room = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(axis, low - (0 if low in axis.include else room), high + room, start, end)


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where the range is short."""
    decades = math.log10(high / low)
    factors = (1.0,) if decades > 3 else (1.0, 2.0, 5.0)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
    return ticks if len(ticks) >= 2 else linear_ticks(low, high)


def compact(value: float, digits: int = 3) -> str:
    """A number in few characters: 1500 is 1.5k, 2e6 is 2M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{suffix}"
    return f"{value:.{digits}g}"


def _is_exact(value: float, digits: int) -> bool:
    return math.isclose(float(f"{value:.{digits}g}"), value, rel_tol=1e-9, abs_tol=1e-12)


def _log(value: float) -> float:
    return math.log10(value)
