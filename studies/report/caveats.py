"""What a ranking or a verdict rests on and cannot say, in sentences: for the page and for the terminal alike."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from archsearch.report.words import counted
from archsearch.studies.evidence.aa import Outcome as Drawn
from archsearch.studies.evidence.conclusions import Conclusions
from archsearch.studies.evidence.findings import rates_differ
from archsearch.studies.evidence.pool import AA_FOLDER, FIGURES_FILE, FINALS_FOLDER
from archsearch.studies.evidence.rows import Evidence
from archsearch.studies.evidence.wording import FAR, is_share, shown, spoken
from archsearch.studies.files import records
from archsearch.studies.tasks.direction import Direction

KEPT_AA = Path(__file__).parents[1] / "results" / "aa" / FIGURES_FILE
"""The A/A study that is kept with the code."""

NO_AA = (
    "No A/A study is kept beside this one, so nothing shows how often these verdicts name a winner where none is: "
    "archsearch study aa DIRECTORY, or studies/configs/aa.yaml."
)

FEW_DOCUMENTS = 10
"""Below it a percentile interval of nominal 95 % covers less than 90 %."""

SHOWN_APART = 4
"""Entrants that a warning about their seeds names."""

OWN_RATES = (
    "Without learning_rates a baseline met one rate, the middle of the range, and every proposal the one that was "
    "drawn with it: part of a difference may be the rate's. Give learning_rates, a grid for all."
)


def warnings(evidence: Evidence, concluded: Conclusions | None = None) -> list[str]:
    """Why a difference may mean less than it seems: nothing is learned yet, some seeds have learned and others not,
    few documents were read, or rates were not searched with equal care.

    Budgets that are not equal are told of beside their table, by `matched_page.unequal`.
    """
    apart = [] if concluded is None else [*_seeds_apart(evidence, concluded), *_few_documents(evidence)]
    return [*_unlearned(evidence, concluded), *apart, *([OWN_RATES] if rates_differ(evidence) else [])]


def _unlearned(evidence: Evidence, concluded: Conclusions | None) -> list[str]:
    """The objectives in which no complete trial, or no entrant in its mean, beats a trivial predictor: there is nothing
    yet to rank in them.
    """
    said: list[str] = []
    for name, way in evidence.objectives.items():
        sign = 1 if way is Direction.MINIMIZE else -1
        best = min((sign * value for value in _reached(evidence, concluded, name)), default=None)
        trivial = min(((sign * value, who) for goal, who, value in evidence.references if goal == name), default=None)
        if best is not None and trivial is not None and best >= trivial[0]:
            said.append(
                f"In {spoken(name)} no {'trial' if concluded is None else 'entrant'} beats {trivial[1]}: "
                f"{shown(name, sign * best)} against {shown(name, sign * trivial[0])}. So far they differ in how they "
                "begin, not in what they can learn; give them more tokens."
            )
    return said


def _seeds_apart(evidence: Evidence, concluded: Conclusions) -> list[str]:
    """The entrants whose seeds are of two kinds in a share: their means and intervals describe neither."""
    said: list[str] = []
    for name in filter(is_share, evidence.objectives):
        found: list[str] = []
        for standing in concluded.standings.values():
            values = sorted(row.values[name] for row in standing.complete)
            if values and values[-1] - values[0] > FAR:
                middle = shown(name, statistics.median(values))
                found.append(f"{standing.name} {shown(name, values[0])} to {shown(name, values[-1])}, median {middle}")
        if found:
            more = f" and {len(found) - SHOWN_APART} more" if len(found) > SHOWN_APART else ""
            said.append(
                f"{spoken(name).capitalize()} differs by more than 10 points between the seeds of one entrant: "
                f"{'; '.join(found[:SHOWN_APART])}{more}. Some seeds learn it late or not at all, and a mean with its "
                "interval describes neither kind: read each seed (More)."
            )
    return said


def _few_documents(evidence: Evidence) -> list[str]:
    """The objectives that are judged on so few documents that resampling them covers too little."""
    said: list[str] = []
    for task, record in evidence.plan.get("tasks", {}).items():
        counts = {len(row.details.get("documents", {}).get(task, ())) for row in evidence.rows}
        most = max(counts, default=0)
        if 0 < most < FEW_DOCUMENTS:
            said.append(
                f"{spoken(record['objective']).capitalize()} is of {counted(most, 'document')}: that few, drawn again, "
                "show too little of how others would differ, so a verdict is of these."
            )
    return said


def _reached(evidence: Evidence, concluded: Conclusions | None, objective: str) -> list[float]:
    if concluded is None:
        return [row.values[objective] for row in evidence.judged]
    return [s.means[objective].mean for s in concluded.standings.values() if objective in s.means]


def aa_beside(path: Path) -> list[str]:
    """What an A/A study says of verdicts here: the study's own, its search's, else the one that is kept with the code;
    nothing where there is none.
    """
    search = path.parent if path.name == FINALS_FOLDER else path
    for place in (search / AA_FOLDER, path):
        record = records.read_json(place / FIGURES_FILE)
        if record is not None:
            with records.read_as_written(place / FIGURES_FILE):
                return aa_words(record)
    kept = records.read_json(KEPT_AA)
    if kept is None:
        return []
    setting = cast(Mapping[str, Mapping[str, Any]], cast(Mapping[str, Any], kept["setting"])["tasks"])
    small = "; ".join(str(task["description"]) for task in setting.values())
    first, *rest = aa_words(kept)
    own = "of a small setting on a CPU; one of this setting: archsearch study aa DIRECTORY"
    return [f"{first} It is {own}.", *rest, f"The small setting: {small}."]


def aa_lines(rule: str, drawn: Drawn) -> list[str]:
    """What an A/A study found, in sentences; the first one says how often a winner is false."""
    return aa_words({"rule": rule, **drawn.record()})


def aa_words(record: Mapping[str, Any]) -> list[str]:
    """The same from the file that an A/A study keeps."""
    lines = [
        f"A/A: {record['rule']} against itself, {record['studies']:,} studies of {record['finalists']} finalists on "
        f"{record['seeds']} seeds, drawn from {record['pool']} trained seeds: in {record['any_winner']:.1%} of the "
        "studies some finalist is said to win."
    ]
    for name, figures in record["objectives"].items():
        lines.append(
            f"A/A, {spoken(name)}: false winners in {figures['false_winners']:.1%} of studies, false losers in "
            f"{figures['false_losers']:.1%}; {figures['coverage']:.1%} of {figures['comparisons']:,} intervals hold 0; "
            f"half an interval is {difference_words(name, figures['half_width'])}."
        )
    return lines


def difference_words(objective: str, value: float) -> str:
    """A difference of values: points of a share, else a number."""
    return f"{100 * value:.2f} points" if is_share(objective) else f"{value:.4f}"
