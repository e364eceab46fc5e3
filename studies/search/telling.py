"""What Optuna is told about a trial's end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import TrialState

from archsearch.studies.files.directory import Measurement, Result
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.rungs import Rungs
from archsearch.studies.tasks.direction import Direction

LEAST_CONSTRAINT = 0.001
FACTS = ("rule_hash", "variant_hash", "space_hash", "origin", "sampler", "duplicate_of", "replicate_of", "seed")
MEASURED_FACTS = (
    "parameters",
    "flops_per_token",
    "state_bytes",
    "tokens_per_second",
    "peak_memory",
    "gpu",
)


@dataclass(frozen=True, slots=True)
class Ending:
    """What Optuna is told about a trial: `values` if it is complete, `constraints` if it was stopped or its rule
    failed.

    curve: the single objective by tokens, empty with several objectives. attributes: flat facts for dashboards. One
    without values and constraints is a failure that teaches the sampler nothing.
    """

    values: tuple[float, ...] | None = None
    constraints: Mapping[str, float] = field(default_factory=dict[str, float])
    curve: Mapping[int, float] = field(default_factory=dict[int, float])
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def state(self) -> TrialState:
        """Optuna's name for it."""
        if self.values is not None:
            return TrialState.COMPLETE
        return TrialState.PRUNED if self.constraints else TrialState.FAIL


def ending(
    result: Result,
    proposal: Mapping[str, Any],
    curve: list[Measurement],
    rungs: Rungs,
    objectives: Mapping[str, Direction],
    number: int,
) -> Ending:
    """The ending of trial `number`: values only for a full budget, a constraint that says how far a stopped one came.

    With one objective the constraint and the values at the rungs both order stopped trials by how far they came; with
    several Optuna knows no intermediate values, and without the constraint it would order them by age.
    """
    constraints = _constraints(result, proposal, rungs, number)
    values: tuple[float, ...] | None = None
    outcome = result.outcome
    if outcome is Outcome.COMPLETE:
        values = tuple(result.values.get(name, math.nan) for name in objectives)
        if not all(math.isfinite(value) for value in values):
            outcome, values = Outcome.UNSTABLE, None
            constraints = _failure(Outcome.UNSTABLE, rungs)
    return Ending(
        values=values,
        constraints=constraints,
        curve=_rung_values(curve, rungs, objectives) if values or constraints else {},
        attributes=_attributes(result, outcome, proposal, constraints),
    )


def _constraints(result: Result, proposal: Mapping[str, Any], rungs: Rungs, number: int) -> dict[str, float]:
    if result.outcome is Outcome.OVER_BUDGET:
        return {f"budget.{name}": len(rungs.tokens) + float(share) for name, share in proposal["missed"].items()}
    if result.outcome.blames_the_rule:
        return _failure(result.outcome, rungs)
    if result.outcome is not Outcome.STOPPED:
        return {}
    stop = rungs.stopped(number)
    rung, better = (0, 1.0) if stop is None else (stop.rung, stop.better)
    return {"rungs_left": max(LEAST_CONSTRAINT, len(rungs.tokens) - 2 - rung + better)}


def _failure(outcome: Outcome, rungs: Rungs) -> dict[str, float]:
    return {f"failed.{outcome.value}": float(len(rungs.tokens) + 1)}


def _rung_values(curve: list[Measurement], rungs: Rungs, objectives: Mapping[str, Direction]) -> dict[int, float]:
    """The single objective at each rung reached; nothing with several objectives."""
    if len(objectives) != 1:
        return {}
    (name,) = objectives
    return {m.tokens: m.values[name] for m in curve if m.tokens in rungs.tokens and name in m.values}


def _attributes(
    result: Result, outcome: Outcome, proposal: Mapping[str, Any], constraints: Mapping[str, float]
) -> dict[str, Any]:
    facts = {name: proposal[name] for name in FACTS if proposal.get(name) is not None}
    measured = {name: value for name, value in (result.details or {}).items() if name in MEASURED_FACTS}
    return {
        **facts,
        **measured,
        "outcome": outcome.value,
        "attempts": result.attempt,
        "tokens": result.tokens,
        **{f"constraint.{key}": value for key, value in constraints.items()},
    }


def missed_words(missed: Mapping[str, float]) -> str:
    """What no sizes of a point meet: `no sizes meet the budget: state_bytes 40 % off`."""
    return "no sizes meet the budget: " + ", ".join(f"{name} {share:.0%} off" for name, share in missed.items())
