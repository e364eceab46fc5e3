"""Trials of an older study that count in a new one: points of its space, trained and scored as it asks."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archsearch.errors import ArchsearchError, StudyError
from archsearch.spaces.resolution import resolve
from archsearch.spaces.space import Space
from archsearch.studies.design.plan import Plan, first_difference
from archsearch.studies.files.directory import IMPORTED, Result, StudyDirectory, TrialDirectory
from archsearch.studies.files.outcomes import Outcome

FIELDS = ("tasks", "evaluations", "averaged", "seed", "total_tokens")
"""What of a question the value of a trial depends on, beside its point."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an older study has for a new one. choices: of its trials that are points of the new space, in their order.
    trials: their directories by variant.
    """

    choices: tuple[Mapping[str, Any], ...] = ()
    trials: Mapping[str, TrialDirectory] | None = None

    def take_over(self, trial: TrialDirectory, proposal: Mapping[str, Any]) -> Result | None:
        """The end of the older trial of a proposal's variant, its curve and checkpoint copied, the result written last;
        None for a proposal on a seed of its own, and where there is none.
        """
        source = (self.trials or {}).get(str(proposal.get("variant_hash")))
        result = None if source is None or proposal.get("seed") is not None else source.result()
        if source is None or result is None:
            return None
        attempt = trial.attempt() + 1
        trial.raise_fence(attempt)
        for measurement in source.curve():
            trial.append_measurement(replace(measurement, attempt=attempt))
        if source.checkpoints.is_dir():
            shutil.copytree(source.checkpoints, trial.checkpoints, dirs_exist_ok=True)
        taken = replace(result, attempt=attempt, details={**(result.details or {}), IMPORTED: str(source.path)})
        trial.write_result(taken)
        return taken


def imported_from(old: Path | None, space: Space, plan: Plan) -> Imported:
    """The trials of the study in `old` that reached their whole budget and are points of `space`; none for no study.

    StudyError if `old` holds no study, or one whose values mean something else.
    """
    if old is None:
        return Imported()
    study = StudyDirectory(old)
    _check_comparable(old, study.plan(), plan)
    trials: dict[str, TrialDirectory] = {}
    choices: list[Mapping[str, Any]] = []
    for trial in study.trials().values():
        proposal, result = trial.proposal() or {}, trial.result()
        if result is None or result.outcome is not Outcome.COMPLETE or proposal.get("seed") is not None:
            continue
        variant = _variant(space, proposal.get("choices", {}))
        if variant == proposal.get("variant_hash") and set(plan.objectives) <= set(result.values):
            trials[str(variant)] = trial
            choices.append(proposal["choices"])
    return Imported(tuple(choices), trials)


def _variant(space: Space, choices: Mapping[str, Any]) -> str | None:
    """The variant that choices make in a space; None if they are none of its points."""
    try:
        point = resolve(space, choices)
    except ArchsearchError:
        return None
    return point.variant_hash if set(point.choices) == set(choices) else None


def _check_comparable(old: Path, record: Mapping[str, Any], plan: Plan) -> None:
    """StudyError, with the first difference, if a value of the older study is not what this one measures."""
    before, now = record.get("fixed", {}), plan.fixed()
    for name in FIELDS:
        difference = first_difference(before.get(name), now.get(name), name)
        if difference is not None:
            key, there, here = difference
            raise StudyError(
                f"trials of {old} cannot count here: {key} is {there} there and {here} here; begin without --import"
            )
