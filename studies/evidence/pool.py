"""Trained seeds of one rule, kept in a small file, and the A/A study that is drawn from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from archsearch.errors import StudyError
from archsearch.studies.evidence.aa import Outcome as Drawn
from archsearch.studies.evidence.aa import Trained
from archsearch.studies.evidence.conclusions import tie_band
from archsearch.studies.evidence.rows import Evidence
from archsearch.studies.files import records
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.tasks.direction import Direction

FINALS_FOLDER, AA_FOLDER = "finals", "aa"
"""Where in the directory of a search its finals and its A/A study live."""

SEEDS_FILE, FIGURES_FILE = "seeds.json", "aa.json"
DIGITS = 4
"""Of a document's score, as it is kept."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Seeds of one rule. objectives: as A/A takes them. setting: what was trained, plain data for readers."""

    rule: str
    seeds: Sequence[int]
    objectives: Mapping[str, Trained]
    setting: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """The object in the file."""
        return {
            "rule": self.rule,
            "setting": dict(self.setting),
            "seeds": list(self.seeds),
            "objectives": {name: _plain(trained) for name, trained in self.objectives.items()},
        }


def pool_of(evidence: Evidence) -> Pool:
    """The seeds of the one entrant of a study. StudyError for several entrants, none, or seeds without a value."""
    if len(evidence.entrants) != 1:
        raise StudyError(
            f"an A/A study trains one entrant on many seeds; this one has {len(evidence.entrants)}: "
            "give it entrants with one rule"
        )
    (name,) = evidence.entrants
    rows = sorted((row for row in evidence.rows if row.entrant == name), key=lambda row: row.seed or 0)
    lost = [row for row in rows if row.outcome is not Outcome.COMPLETE]
    if lost or not rows:
        what = f"{lost[0].name} has none" if lost else "there is none"
        raise StudyError(f"every seed of an A/A study must have a value; {what}: resume the study, or change its rule")
    objectives: dict[str, Trained] = {}
    for objective, direction in evidence.objectives.items():
        values = [row.values[objective] for row in rows]
        task = next((n for n, t in evidence.plan["tasks"].items() if t["objective"] == objective), "")
        kept = [cast(list[list[Any]], row.details.get("documents", {}).get(task, [])) for row in rows]
        bits = np.array([[round(float(d[2]), DIGITS) for d in each] for each in kept]) if all(kept) else None
        sizes = np.array([float(d[1]) for d in kept[0]]) if all(kept) else None
        objectives[objective] = Trained(
            direction, values, tie_band(objective, evidence.plan["fixed"]["ties"]), bits, sizes
        )
    return Pool(name, [int(row.seed or 0) for row in rows], objectives, _setting(evidence))


def read_pool(path: Path) -> Pool:
    """The pool in a file. StudyError if it holds none."""
    record = records.read_json(path)
    if record is None or "objectives" not in record:
        raise StudyError(f"an A/A study reads {SEEDS_FILE} with its objectives; {path} holds none")
    with records.read_as_written(path):
        records.check_kinds(record, {"rule": str, "seeds": list, "objectives": dict, "setting": dict})
        objectives = cast(Mapping[str, Mapping[str, Any]], record["objectives"])
        seeds = cast(list[object], record["seeds"])
        for name, each in objectives.items():
            if not all(type(value) in records.NUMBER for value in each["values"]):
                raise ValueError(f"values of {name} that are no numbers")
            if len(each["values"]) != len(seeds):
                raise ValueError(f"{len(each['values'])} values of {name} for {len(seeds)} seeds")
        if not objectives:
            raise ValueError("no objectives")
        return Pool(
            rule=str(record["rule"]),
            seeds=cast(list[int], record["seeds"]),
            objectives={name: _trained(each) for name, each in objectives.items()},
            setting=cast(Mapping[str, Any], record["setting"]),
        )


def write_figures(directory: Path, pool: Pool, drawn: Drawn) -> None:
    """Keep the seeds and what was drawn from them beside each other."""
    records.write_json(directory / SEEDS_FILE, pool.record())
    records.write_json(directory / FIGURES_FILE, {"rule": pool.rule, "setting": dict(pool.setting), **drawn.record()})


def _setting(evidence: Evidence) -> dict[str, Any]:
    plan = evidence.plan
    return {
        "tasks": {name: {"description": t["description"], "tokens": t["tokens"]} for name, t in plan["tasks"].items()},
        "versions": plan["versions"],
    }


def _plain(trained: Trained) -> dict[str, Any]:
    documents: dict[str, Any] = {}
    if trained.bits is not None and trained.sizes is not None:
        documents = {"sizes": trained.sizes.tolist(), "bits": trained.bits.tolist()}
    return {
        "direction": trained.direction.value,
        "band": trained.band,
        "values": list(trained.values),
        **documents,
    }


def _trained(record: Mapping[str, Any]) -> Trained:
    has_documents = "bits" in record
    return Trained(
        Direction(record["direction"]),
        record["values"],
        record["band"],
        np.array(record["bits"]) if has_documents else None,
        np.array(record["sizes"]) if has_documents else None,
    )
