"""What a search teaches beside its ranking: which choices matter, which rates suit, what rungs are worth, the cost.

Everything is computed from the study's files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from archsearch.studies.design.rates import RATE
from archsearch.studies.evidence.best_rate import best_rate
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.files.decisions import Decision
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.fronts import losses, ranking
from archsearch.studies.tasks.direction import Direction

LEAST_TRIALS = 8
"""Complete trials below which no importance is told."""

WEAK = 0.5
"""A rung whose order agrees less than this with the order at the end is too early."""

PAID_BEFORE = "an older study, which paid for them"
"""Trials that were taken over: no part of what this study cost."""


@dataclass(frozen=True, slots=True)
class RungWorth:
    """What the free passes say of one rung.

    passes: trials that ran to their end whatever their rank and were measured here. correlation: Spearman's, of the
    ranks here and at the end; None below 3 passes. wronged: how many of them the rung would have stopped although they
    ended in the better half of the free passes.
    """

    rung: int
    tokens: int
    arrived: int
    stopped: int
    passes: int
    correlation: float | None
    wronged: int


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A structure at several learning rates. points: by objective (rate, value), by rising rate.

    best: the rate that suits it best over all objectives, by which it is judged. at_edge: which end of what was tried
    that is, `lowest` or `highest`; empty if it lies inside.
    """

    name: str
    is_baseline: bool
    points: Mapping[str, Sequence[tuple[float, float]]]
    best: float
    at_edge: str

    def at_best(self, objective: str) -> float:
        """The value at the best rate."""
        return dict(self.points[objective])[self.best]


def importances(evidence: Evidence, objective: str) -> dict[str, float]:
    """Shares of the variance that each choice explains among the better trials (PED-ANOVA), largest first.

    Choices that every complete trial made; one that exists in a branch alone is left out, since the few better trials
    that made it would weigh more than all others. Nothing below 8 trials or where all values are equal.
    """
    rows = [row for row in evidence.ended(Outcome.COMPLETE) if row.seed is None]
    values = [row.values[objective] for row in rows]
    if len(rows) < LEAST_TRIALS or len(set(values)) < 2:
        return {}
    domains = _domains(rows)
    if not domains:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=evidence.objectives[objective].value)
    for row, value in zip(rows, values, strict=True):
        params = {path: _choice(row.choices[path]) for path in row.choices if path in domains}
        study.add_trial(
            create_trial(params=params, distributions={path: domains[path] for path in params}, value=value)
        )
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {path: float(share) for path, share in found.items() if math.isfinite(share)}


def _domains(rows: Sequence[Row]) -> dict[str, BaseDistribution]:
    """What was tried of each choice that every trial made and that took at least two values."""
    tried: dict[str, list[str | int | float]] = {}
    for row in rows:
        for path, value in row.choices.items():
            tried.setdefault(path, []).append(value)
    domains: dict[str, BaseDistribution] = {}
    for path, values in tried.items():
        distinct = sorted(set(values), key=str)
        if len(distinct) < 2 or len(values) < len(rows):
            continue
        if all(isinstance(value, str) for value in distinct):
            domains[path] = CategoricalDistribution([str(value) for value in distinct])
        else:
            numbers = [float(value) for value in distinct]
            low, high = min(numbers), max(numbers)
            domains[path] = FloatDistribution(low, high, log=low > 0 and high / low > 4)
    return domains


def _choice(value: object) -> object:
    return value if isinstance(value, str) else float(str(value))


def rate_curves(evidence: Evidence) -> list[RateCurve]:
    """Each structure that completed at two rates at least, the best in the first objective first."""
    name, way = next(iter(evidence.objectives.items()))
    tried: dict[str, list[tuple[float, Row]]] = {}
    for row in evidence.rows:
        if row.learning_rate is not None and row.seed is None and row.outcome is not Outcome.DUPLICATE:
            tried.setdefault(row.structure, []).append((row.learning_rate, row))
    curves: list[RateCurve] = []
    for group in tried.values():
        rated = sorted(group, key=lambda pair: pair[0])
        complete = [(rate, row) for rate, row in rated if row.outcome is Outcome.COMPLETE]
        if len(complete) < 2:
            continue
        best, row = complete[best_rate([row.values for _, row in complete], evidence.objectives)]
        edge = {rated[0][0]: "lowest", rated[-1][0]: "highest"}.get(best, "")
        points = {goal: [(rate, row.values[goal]) for rate, row in complete] for goal in evidence.objectives}
        curves.append(RateCurve(row.name, row.is_baseline, points, best, edge))
    return sorted(curves, key=lambda curve: curve.at_best(name), reverse=way is Direction.MAXIMIZE)


def has_grid(evidence: Evidence) -> bool:
    """Whether every structure was trained at the rates of one grid."""
    return bool(evidence.plan.get("config", {}).get("learning_rates"))


def rates_differ(evidence: Evidence) -> bool:
    """Whether structures were judged at rates of their own without a grid: a baseline has then met one rate alone, the
    others the one that was proposed with them.
    """
    return not has_grid(evidence) and any(RATE in row.choices for row in evidence.rows)


def rung_worth(evidence: Evidence, decisions: Sequence[Decision]) -> list[RungWorth]:
    """One entry for each rung that trials came to."""
    free = {d.trial for d in decisions if d.reason == "a free pass"}
    ends = {row.number: row for row in evidence.ended(Outcome.COMPLETE) if row.number in free}
    found: list[RungWorth] = []
    for rung in sorted({d.rung for d in decisions}):
        here = [d for d in decisions if d.rung == rung]
        passed = [d for d in here if d.trial in ends]
        early = _ranks([losses(d.values, evidence.objectives) for d in passed])
        late = _ranks([losses(ends[d.trial].values, evidence.objectives) for d in passed])
        found.append(
            RungWorth(
                rung=rung,
                tokens=here[0].tokens,
                arrived=len(here),
                stopped=sum(d.stop for d in here),
                passes=len(passed),
                correlation=_pearson(early, late) if len(passed) >= 3 else None,
                wronged=_wronged(passed, late, evidence),
            )
        )
    return found


def _wronged(passed: Sequence[Decision], late: Sequence[int], evidence: Evidence) -> int:
    eta = int(evidence.plan["fixed"]["rungs"]["eta"])
    stopped = [d.rank >= max(1, d.peers // eta) for d in passed]
    return sum(stop and 2 * rank < len(passed) - 1 for stop, rank in zip(stopped, late, strict=True))


def _ranks(points: Sequence[tuple[float, ...]]) -> list[int]:
    """The place of each point, 0 the best, as the rungs order them."""
    places = [0] * len(points)
    for place, i in enumerate(ranking(list(points))):
        places[i] = place
    return places


def _pearson(one: Sequence[int], other: Sequence[int]) -> float:
    """Of ranks without ties this is Spearman's correlation."""
    middle = (len(one) - 1) / 2
    spread = math.fsum((a - middle) ** 2 for a in one)
    return math.fsum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True)) / spread


@dataclass(frozen=True, slots=True)
class Arm:
    """The proposals of one sampler. course: (device seconds so far, best of the first objective so far), stopped and
    failed trials paid for too; seconds: of all of them.
    """

    sampler: str
    trials: int
    seconds: float
    course: Sequence[tuple[float, float]]

    def best_by(self, seconds: float) -> float | None:
        """The best once so many seconds were spent; None if nothing was complete by then."""
        found = [value for spent, value in self.course if spent <= seconds]
        return found[-1] if found else None


def arms(evidence: Evidence) -> list[Arm]:
    """What each sampler found for its device time, a structure's other rates with the proposal that they belong to."""
    name, way = next(iter(evidence.objectives.items()))
    better = min if way is Direction.MINIMIZE else max
    samplers = {row.number: row.sampler for row in evidence.rows}
    parts: dict[str, list[Row]] = {}
    for row in evidence.rows:
        if not row.is_baseline and row.outcome is not Outcome.DUPLICATE:
            parts.setdefault(samplers.get(row.number if row.leader is None else row.leader, ""), []).append(row)
    found: list[Arm] = []
    for sampler, rows in parts.items():
        spent, course = 0.0, list[tuple[float, float]]()
        for row in rows:
            spent += row.seconds
            if row.outcome is Outcome.COMPLETE:
                value = row.values[name]
                course.append((spent, better(value, course[-1][1]) if course else value))
        found.append(Arm(sampler, len(rows), spent, course))
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """Of some trials, proposals that repeated another left out.

    seconds: of training on their devices, the part of lost attempts that was not repeated too. wall: during which one
    of them trained at least, trials that shared a device counted once; None where a trial has not kept when it trained.
    """

    what: str
    trials: int
    seconds: float
    wall: float | None
    tokens: int
    devices: str


def costs(evidence: Evidence) -> list[Cost]:
    """What was spent, by what the trials were for, and in all."""
    parts: dict[str, list[Row]] = {}
    rows = [row for row in evidence.rows if row.outcome is not Outcome.DUPLICATE]
    for row in rows:
        parts.setdefault(_purpose(row), []).append(row)
    found = [_cost(what, group) for what, group in parts.items()]
    paid = [row for row in rows if _purpose(row) != PAID_BEFORE]
    return [*found, _cost("all", paid)] if len(found) > 1 else found


def _purpose(row: Row) -> str:
    if row.is_imported:
        return PAID_BEFORE
    if row.entrant is not None:
        return "entrants on fresh seeds"
    if row.is_baseline:
        return "baselines"
    if row.outcome not in (None, Outcome.COMPLETE, Outcome.STOPPED):
        return "failed proposals"
    return "stopped proposals" if row.outcome is Outcome.STOPPED else "proposals"


def _cost(what: str, rows: Sequence[Row]) -> Cost:
    devices = sorted({str(row.details.get("gpu") or "CPU") for row in rows if row.seconds})
    return Cost(
        what,
        len(rows),
        math.fsum(row.seconds for row in rows),
        wall_seconds(rows),
        sum(row.tokens for row in rows),
        ", ".join(devices),
    )


def wall_seconds(rows: Sequence[Row]) -> float | None:
    """The seconds during which one of the trials trained at least; None where one that trained has not kept when."""
    kept = [_spans(row) for row in rows if row.seconds]
    return covered([span for spans in kept for span in spans]) if kept and all(kept) else None


def _spans(row: Row) -> list[tuple[float, float]]:
    """When a trial trained: as its group kept it, or, of one that trained alone, before each of its evaluations;
    nothing where the files do not say, as of a group that began again.
    """
    group = row.details.get("group")
    if group is not None:
        return [(float(start), float(stop)) for start, stop in group["spans"]] if row.attempt == 1 else []
    spans: list[tuple[float, float]] = []
    before = 0.0
    for measured in row.curve:
        if measured.at is None:
            return []
        spans.append((measured.at - max(0.0, measured.seconds - before), measured.at))
        before = measured.seconds
    return spans


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in one of the spans (start, stop) at least."""
    total, end = 0.0, -math.inf
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def rung_summary(decisions: Sequence[Decision], objectives: Mapping[str, Direction]) -> dict[str, int | float]:
    """One line about the decisions of one rung."""
    best: dict[str, float] = {}
    for name, way in objectives.items():
        values = [decision.values[name] for decision in decisions]
        best[f"best_{name}"] = max(values) if way is Direction.MAXIMIZE else min(values)
    return {
        "rung": decisions[0].rung,
        "tokens": decisions[0].tokens,
        "arrived": len(decisions),
        "stopped": sum(decision.stop for decision in decisions),
        **best,
    }
