"""What a study's files say, as rows: trials with their ends and curves, in order of merit. Reads files only."""

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archsearch.studies.design.entrants import Role
from archsearch.studies.design.rates import without_rate
from archsearch.studies.evidence.best_rate import best_rate
from archsearch.studies.evidence.naming import choice_words, differing, name_words
from archsearch.studies.files import records
from archsearch.studies.files.directory import IMPORTED, Measurement, StudyDirectory
from archsearch.studies.files.origins import BASELINE, name_in
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.fronts import fronts, losses
from archsearch.studies.tasks.direction import Direction


@dataclass(frozen=True, slots=True)
class Row:
    """One trial. outcome: None while it has no end. values: of its end, or measured last. details: facts of its end.

    leader: the trial of the same structure that this one goes with, at another learning rate.
    seed: the fresh seed of an entrant's trial, or that of a variant proposed again; None where all share the search's.
    entrant: its name. replicate_of: the first trial of the same variant, on the search's seed. seeds: over how many
    `values` are means.
    words: its choices, as they tell it from the other trials. duplicate_of: the trial that was the same variant.
    model, budget: the model's sizes and what they were to cost, as trial.json has them.
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
    words: str = ""
    duplicate_of: int | None = None
    replicate_of: int | None = None
    seeds: int = 1
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    budget: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_baseline(self) -> bool:
        """Whether a search is compared with it."""
        return self.origin.startswith(BASELINE)

    @property
    def name(self) -> str:
        """The name that it was asked for by, or the choices in words."""
        return name_in(self.origin) or self.words or choice_words(self.choices)

    @property
    def is_imported(self) -> bool:
        """Whether an older study trained it."""
        return IMPORTED in self.details

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
        """The complete trials that count: of a variant on several seeds the first one with the means over all, of a
        structure trained at several rates the one at its best rate.
        """
        structures: dict[str, list[Row]] = {}
        for row in self._variants:
            structures.setdefault(row.structure, []).append(row)
        best = [rows[best_rate([row.values for row in rows], self.objectives)] for rows in structures.values()]
        return sorted(best, key=lambda row: row.number)

    @property
    def _variants(self) -> list[Row]:
        """One complete trial a variant, the first, with the means over all of its seeds."""
        found: dict[int, list[Row]] = {}
        for row in self.ended(Outcome.COMPLETE):
            found.setdefault(row.number if row.replicate_of is None else row.replicate_of, []).append(row)
        return [self._mean(rows) for rows in found.values()]

    def _mean(self, rows: Sequence[Row]) -> Row:
        first = rows[0]
        if len(rows) == 1:
            return first
        means = {name: statistics.fmean(row.values[name] for row in rows) for name in self.objectives}
        return dataclasses.replace(first, values={**first.values, **means}, seeds=len(rows))

    @property
    def ranking(self) -> list[tuple[int, Row]]:
        """(front, row) of the judged trials, best first: by front (1 is the best), inside one by the first
        objective.
        """
        rows = self.judged
        points = [losses(row.values, self.objectives) for row in rows]
        return [
            (number, rows[i])
            for number, members in enumerate(fronts(points), start=1)
            for i in sorted(members, key=lambda i: (points[i], rows[i].number))
        ]

    @property
    def unranked(self) -> list[tuple[Row, str]]:
        """The trials without a place in the ranking and why, those that came furthest first; repetitions that were not
        run are left out.
        """
        judged = {row.structure: row for row in self.judged}
        ranked = {row.number for row in judged.values()}
        left = [row for row in self.rows if row.number not in ranked and row.outcome is not Outcome.DUPLICATE]
        return [(row, self._why_unranked(row, judged)) for row in sorted(left, key=lambda row: -row.tokens)]

    @property
    def winner(self) -> Row | None:
        """The first of the ranking."""
        return self.ranking[0][1] if self.ranking else None

    @property
    def against(self) -> str | None:
        """The baseline that others are compared with: as the study fixed it, else as asked, else the first."""
        baselines = list(self.plan.get("baselines", {}))
        given = self.plan.get("fixed", {}).get("against") or self.plan.get("config", {}).get("against")
        return given or (baselines[0] if baselines else None)

    @property
    def references(self) -> list[tuple[str, str, float]]:
        """(objective, name, value) of what a task calls trivial: chance, an n-gram."""
        found: list[tuple[str, str, float]] = []
        for task in self.plan.get("tasks", {}).values():
            found += [(str(task["objective"]), str(name), float(value)) for name, value in task["baselines"].items()]
        return [entry for entry in found if entry[0] in self.objectives]

    @property
    def outcomes(self) -> dict[str, int]:
        """How many trials ended in which way."""
        return dict(Counter(row.outcome.value for row in self.rows if row.outcome is not None))

    def ended(self, outcome: Outcome) -> list[Row]:
        """The trials of one class."""
        return [row for row in self.rows if row.outcome is outcome]

    def is_of_baseline(self, row: Row) -> bool:
        """Whether a trial is of a baseline, in a search or among entrants."""
        record = self.entrants.get(row.entrant or "")
        return row.is_baseline if record is None else record["role"] == Role.BASELINE.value

    def _why_unranked(self, row: Row, judged: Mapping[str, Row]) -> str:
        match row.outcome:
            case None:
                return f"has not ended, {self._share(row):.0%} done"
            case Outcome.STOPPED:
                return f"stopped at {self._share(row):.0%}: others were better"
            case Outcome.COMPLETE:
                best = judged[row.structure]
                is_mean = row.replicate_of == best.number
                return (
                    f"in the means of trial {best.number}" if is_mean else f"better at the rate of trial {best.number}"
                )
            case _:
                return row.message or row.outcome.value

    def _share(self, row: Row) -> float:
        """How much of its budget a trial had."""
        return row.tokens / int(self.plan["rung_tokens"][-1])


def read_evidence(directory: StudyDirectory) -> Evidence:
    """Everything the files say now. StudyError if the directory holds no study."""
    plan = directory.plan()
    with records.read_as_written(directory.path / "study.json"):
        objectives = {name: Direction(way) for name, way in plan["objectives"].items()}
        hashes = _entrants(plan)
    rows = [_row(directory, number, hashes, objectives) for number in directory.trials()]
    _check_choices(directory, rows)
    paths = differing([row.choices for row in rows])
    named = [dataclasses.replace(row, words=name_words(row.choices, paths)) for row in rows]
    return Evidence(plan, objectives, named)


def _entrants(plan: Mapping[str, Any]) -> dict[str, str]:
    """The names of the entrants by hash. ValueError for a role that is none, or a comparison with none of them."""
    entrants: Mapping[str, Mapping[str, str]] = plan.get("entrants", {})
    for entrant in entrants.values():
        Role(entrant["role"])
    if entrants and plan["fixed"]["against"] not in entrants:
        raise ValueError(f"no entrants.{plan['fixed']['against']}")
    return {entrant["hash"]: name for name, entrant in entrants.items()}


def _check_choices(directory: StudyDirectory, rows: Sequence[Row]) -> None:
    """Whether a choice is text in every trial that has it, or a number in each. DamagedError."""
    texts: dict[str, bool] = {}
    for row in rows:
        with records.read_as_written(directory.trial(row.number).path / "trial.json"):
            for path, value in row.choices.items():
                if texts.setdefault(path, isinstance(value, str)) is not isinstance(value, str):
                    raise ValueError(f"choices.{path} {value!r}")


def _row(directory: StudyDirectory, number: int, entrants: Mapping[str, str], objectives: Collection[str]) -> Row:
    trial = directory.trial(number)
    proposal, result, curve = trial.proposal() or {}, trial.result(), trial.curve()
    last = curve[-1] if curve else None
    if result is not None and result.outcome is Outcome.COMPLETE:
        with records.read_as_written(trial.path / "result.json"):
            records.check_kinds(result.values, dict.fromkeys(objectives, records.NUMBER))
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
        duplicate_of=proposal.get("duplicate_of"),
        replicate_of=proposal.get("replicate_of"),
        model=proposal.get("model") or {},
        budget=proposal.get("budget") or {},
    )
