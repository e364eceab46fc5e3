"""The result of one property."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error` is the worst measured, `bound` what it may reach; `where` names the worst place. NaN passes no bound."""

    name: str
    error: float
    bound: float
    where: str = ""

    @property
    def passed(self) -> bool:
        """Whether the property held."""
        return self.error <= self.bound

    def __str__(self) -> str:
        mark = "passed" if self.passed else "FAILED"
        place = f"  {self.where}" if self.where else ""
        return f"{mark}  {self.name}: error {self.error:.2e}, bound {self.bound:.2e}{place}"


def worst(name: str, measured: list[Verdict]) -> Verdict:
    """The one nearest to its bound, or furthest beyond it, under the name of the property."""
    if not measured:
        return Verdict(name, 0.0, 0.0, "nothing to measure")
    verdict = max(measured, key=_nearness)
    return Verdict(name, verdict.error, verdict.bound, verdict.where)


def _nearness(verdict: Verdict) -> float:
    if verdict.error != verdict.error:
        return float("inf")
    return verdict.error / verdict.bound if verdict.bound else float(verdict.error > 0) * 1e300
