"""What a study of entrants concludes: every entrant against the named baseline, objective by objective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsearch.studies.design.entrants import Role
from archsearch.studies.evidence.comparison import Contest, Documents, Interval, Judgement, Numbers, judge, student
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.evidence.wording import is_share
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.training.timing import STEP_TIME

SHARE_BAND = 0.01
"""A point of accuracy: differences of shares below it do not matter."""

BITS_PER_BYTE_BAND = 0.005

ROUNDING = 1e-5
"""Shares by which a value and the one of its documents may differ though they are the same evaluation."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One entrant on the fresh seeds. means: of each objective, with intervals over its own seeds, unpaired.

    seeds: with a value. rows: its trials. scores: what the search had measured, on the seed that chose it.
    """

    name: str
    role: Role
    rows: Sequence[Row]
    means: Mapping[str, Interval]
    scores: Mapping[str, float]

    @property
    def complete(self) -> list[Row]:
        """Its trials with a value."""
        return [row for row in self.rows if row.outcome is Outcome.COMPLETE]


@dataclass(frozen=True, slots=True)
class Conclusions:
    """against: the baseline that verdicts are about. judgements: by objective, one for every other entrant."""

    against: str
    seeds: Sequence[int]
    standings: Mapping[str, Standing]
    judgements: Mapping[str, Sequence[Judgement]]

    def of(self, entrant: str) -> dict[str, Judgement]:
        """The judgements on one entrant, by objective; none on the baseline itself."""
        return {name: j for name, family in self.judgements.items() for j in family if j.name == entrant}


def conclude(evidence: Evidence) -> Conclusions | None:
    """The conclusions as far as the trials have come; None for a study without entrants.

    Finalists are one family of Holm's correction in each objective; other baselines, of which nothing is claimed, are
    another.
    """
    if not evidence.entrants:
        return None
    standings = {name: _standing(evidence, name, record) for name, record in evidence.entrants.items()}
    fixed = evidence.plan["fixed"]
    against = str(fixed["against"])
    judgements: dict[str, list[Judgement]] = {}
    for objective in evidence.objectives:
        found: list[Judgement] = []
        for is_baseline in (False, True):
            family = [s for s in standings.values() if (s.role is Role.BASELINE) == is_baseline and s.name != against]
            found += judge([_contest(evidence, s, standings[against], objective) for s in family])
        judgements[objective] = found
    return Conclusions(against, [int(seed) for seed in fixed["seeds"]], standings, judgements)


def tie_band(objective: str, given: Mapping[str, float]) -> float:
    """How small a difference of an objective does not matter: as the study fixed it, else by what it is."""
    if objective in given:
        return float(given[objective])
    if objective == "bits_per_byte":
        return BITS_PER_BYTE_BAND
    return SHARE_BAND if is_share(objective) else 0.0


def _standing(evidence: Evidence, name: str, record: Mapping[str, Any]) -> Standing:
    rows = [row for row in evidence.rows if row.entrant == name]
    complete = [row for row in rows if row.outcome is Outcome.COMPLETE]
    means = {
        objective: student([row.values[objective] for row in complete]) for objective in evidence.objectives if complete
    }
    return Standing(name, Role(record["role"]), rows, means, record["scores"])


def _contest(evidence: Evidence, entrant: Standing, baseline: Standing, objective: str) -> Contest:
    mine = {row.seed: row for row in entrant.complete}
    other = {row.seed: row for row in baseline.complete}
    pairs = [(mine[seed], other[seed]) for seed in mine if seed in other]
    return Contest(
        name=entrant.name,
        direction=evidence.objectives[objective],
        values=[row.values[objective] for row, _ in pairs],
        against=[row.values[objective] for _, row in pairs],
        band=tie_band(objective, evidence.plan["fixed"].get("ties", {})),
        failed=_failed([*entrant.rows, *baseline.rows]) or _measured_once(objective),
        documents=_documents(evidence, objective, pairs),
        in_points=is_share(objective),
    )


def _measured_once(objective: str) -> str:
    """Why an objective that all seeds of a structure share cannot be judged from them; empty for others."""
    return "one measurement a structure stands for all" if objective == STEP_TIME else ""


def _failed(rows: Sequence[Row]) -> str:
    """Which trials ended without a value, in words; those that have not ended are not counted."""
    lost = [row for row in rows if row.outcome not in (None, Outcome.COMPLETE, Outcome.DUPLICATE)]
    return ", ".join(f"{row.name} {row.outcome.value}" for row in lost if row.outcome is not None)


def _documents(evidence: Evidence, objective: str, pairs: Sequence[tuple[Row, Row]]) -> Documents | None:
    """The costs of every document of the task that the objective is of, if each trial kept them."""
    task = next((n for n, t in evidence.plan.get("tasks", {}).items() if t["objective"] == objective), None)
    if not pairs or any(task not in row.details.get("documents", {}) for pair in pairs for row in pair):
        return None
    sizes = np.array([float(document[1]) for document in pairs[0][0].details["documents"][task]])
    bits, against = (np.stack([_bits(pair[side], str(task), objective, sizes) for pair in pairs]) for side in (0, 1))
    return Documents(bits, against, sizes)


def _bits(row: Row, task: str, objective: str, sizes: Numbers) -> Numbers:
    """[D] of a trial. Where its value is a mean over evaluations, every document is moved by as much as the whole."""
    bits = np.array([float(document[2]) for document in row.details["documents"][task]])
    apart = row.values[objective] - float(bits.sum() / sizes.sum())
    return bits + apart * sizes if abs(apart) > ROUNDING * abs(row.values[objective]) else bits
