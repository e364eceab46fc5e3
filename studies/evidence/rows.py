"""What a study's files say, as rows: trials with their ends and curves, in order of merit. Reads files only."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archsearch.studies.design.rates import without_rate
from archsearch.studies.files import records
from archsearch.studies.files.directory import Measurement, StudyDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.fronts import front, losses
from archsearch.studies.tasks.direction import Direction

BASELINE = "baseline:"


@dataclass(frozen=True, slots=True)
class Row:
    """One trial. outcome: None while it has no end. values: of its end, or measured last. details: facts of its end.

    leader: the trial of the same structure that this one goes with, at another learning rate.
    seed: the fresh seed of an entrant's trial; None in a search, where all share one. entrant: its name.
    """

    number: int
    origin: str
    sampler: str
    choices: Mapping[str, Any]
    rule: str
    rule_hash: str
    variant_hash: str
    outcome: Outcome | None
    attempt: int
    tokens: int
    values: Mapping[str, float]
    seconds: float
    message: str
    details: Mapping[str, Any]
    curve: Sequence[Measurement]
    learning_rate: float | None = None
    leader: int | None = None
    seed: int | None = None
    entrant: str | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether it was asked for by name."""
        return self.origin.startswith(BASELINE)

    @property
    def name(self) -> str:
        """The baseline's name, or the rule's choices in words."""
        return self.origin.removeprefix(BASELINE) if self.is_baseline else choice_words(self.choices)

    @property
    def structure(self) -> str:
        """Equal for trials that differ in the learning rate alone."""
        return json.dumps(without_rate(self.choices), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A study as far as it has come. plan: the object in study.json."""

    plan: Mapping[str, Any]
    objectives: Mapping[str, Direction]
    rows: Sequence[Row]

    @property
    def entrants(self) -> Mapping[str, Mapping[str, Any]]:
        """What study.json says of the entrants, by name; none in a search."""
        return self.plan.get("entrants", {})

    @property
    def judged(self) -> list[Row]:
        """The complete trials that count: of a structure trained at several rates the best by the first objective,
        the earliest of equals.
        """
        best: dict[str, Row] = {}
        for row in self.ended(Outcome.COMPLETE):
            kept = best.setdefault(row.structure, row)
            if losses(row.values, self.objectives)[0] < losses(kept.values, self.objectives)[0]:
                best[row.structure] = row
        return sorted(best.values(), key=lambda row: row.number)

    @property
    def ranking(self) -> list[tuple[int, Row]]:
        """(front, row) of the judged trials, best first: by front (1 is the best), inside one by the first
        objective.
        """
        left = self.judged
        ranked: list[tuple[int, Row]] = []
        number = 0
        while left:
            number += 1
            points = [losses(row.values, self.objectives) for row in left]
            members = sorted(front(points), key=lambda i: (points[i], left[i].number))
            ranked += [(number, left[i]) for i in members]
            left = [row for i, row in enumerate(left) if i not in members]
        return ranked

    @property
    def winner(self) -> Row | None:
        """The first of the ranking."""
        return self.ranking[0][1] if self.ranking else None

    @property
    def references(self) -> list[tuple[str, str, float]]:
        """(objective, name, value) of what a task calls trivial: chance, an n-gram."""
        found: list[tuple[str, str, float]] = []
        for task in self.plan.get("tasks", {}).values():
            found += [(str(task["objective"]), str(name), float(value)) for name, value in task["baselines"].items()]
        return [entry for entry in found if entry[0] in self.objectives]

    def ended(self, outcome: Outcome) -> list[Row]:
        """The trials of one class."""
        return [row for row in self.rows if row.outcome is outcome]


def read_evidence(directory: StudyDirectory) -> Evidence:
    """Everything the files say now. StudyError if the directory holds no study."""
    plan = directory.plan()
    with records.read_as_written(directory.path / "study.json"):
        objectives = {name: Direction(way) for name, way in plan["objectives"].items()}
    hashes = {str(entrant["hash"]): name for name, entrant in plan.get("entrants", {}).items()}
    return Evidence(plan, objectives, [_row(directory, number, hashes) for number in directory.trials()])


def choice_words(choices: Mapping[str, Any]) -> str:
    """The choices of a rule in a few words: `scalar decay, learned erase, 0.31 lam`."""
    words: list[str] = []
    for path, value in choices.items():
        if path.startswith("rule/") and value not in ("none", "no"):
            shown = f"{value:.2f}" if isinstance(value, float) else str(value)
            words.append(f"{shown} {path.rsplit('/', 1)[-1]}")
    return ", ".join(words) or "plain"


def _row(directory: StudyDirectory, number: int, entrants: Mapping[str, str]) -> Row:
    trial = directory.trial(number)
    proposal, result, curve = trial.proposal() or {}, trial.result(), trial.curve()
    last = curve[-1] if curve else None
    return Row(
        number=number,
        origin=str(proposal.get("origin", "")),
        sampler=str(proposal.get("sampler", "")),
        choices=proposal.get("choices", {}),
        rule=str(proposal.get("rule", "")),
        rule_hash=str(proposal.get("rule_hash", "")),
        variant_hash=str(proposal.get("variant_hash", "")),
        outcome=result.outcome if result else None,
        attempt=trial.attempt(),
        tokens=result.tokens if result else (last.tokens if last else 0),
        values=result.values if result else (last.values if last else {}),
        seconds=result.seconds if result else (last.seconds if last else 0.0),
        message=result.message if result else "",
        details=(result.details or {}) if result else {},
        curve=curve,
        learning_rate=proposal.get("training", {}).get("learning_rate"),
        leader=proposal.get("leader"),
        seed=proposal.get("seed"),
        entrant=entrants.get(str(proposal.get("entrant_hash"))),
    )
