"""What a study asked: fixed when it begins, compared when it is resumed."""

import datetime
import importlib.metadata
import itertools
import platform
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from archsearch.errors import StudyError
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.origins import BASELINE
from archsearch.studies.search.rungs import RungOptions, rung_tokens
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.tasks.direction import Direction

SCHEMA_VERSION = 1
PACKAGES = ("archsearch", "torch", "triton", "ray", "optuna")


@dataclass(frozen=True, slots=True)
class Plan:
    """A study's question.

    objectives: by name, the first one names the study. total_tokens: the full budget of one trial, all its tasks.
    baselines: the choices of each named rule, or of each trial of entrants; origin: which of the two. holes: how many
    choices a point has at most. question: what else may not change (space, tasks, budgets, data), plain data. details:
    what workers and readers need besides, plain data.
    """

    objectives: Mapping[str, Direction]
    rungs: RungOptions
    sampler: SamplerOptions
    seed: int
    total_tokens: int
    holes: int
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    origin: str = BASELINE
    question: Mapping[str, Any] = field(default_factory=dict[str, Any])
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Refuse a budget too small for its rungs. StudyError."""
        rung_tokens(self.rungs, self.total_tokens)

    def fixed(self) -> dict[str, Any]:
        """All that may not change while the study lives."""
        return {
            **self.question,
            "objectives": {name: way.value for name, way in self.objectives.items()},
            "rungs": {name: getattr(self.rungs, name) for name in RungOptions.__slots__},
            "seed": self.seed,
            "total_tokens": self.total_tokens,
        }

    def record(self) -> dict[str, Any]:
        """The object in study.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "fixed": self.fixed(),
            "objectives": {name: way.value for name, way in self.objectives.items()},
            "rung_tokens": list(rung_tokens(self.rungs, self.total_tokens)),
            "baselines": {name: dict(choices) for name, choices in self.baselines.items()},
            **self.details,
            "versions": versions(),
        }


def begin_or_compare(directory: StudyDirectory, plan: Plan) -> None:
    """Write study.json, or make sure that the one there asks the same. StudyError names the first difference.

    The caller holds the study's lock.
    """
    if not directory.exists():
        name = f"{directory.path.resolve().name}-{secrets.token_hex(3)}"  # a database may hold many studies
        directory.write_plan({**plan.record(), "study_name": name})
        return
    kept = directory.plan()
    with records.read_as_written(directory.path / "study.json"):
        fixed = cast(dict[str, Any], kept["fixed"])
    difference = first_difference(fixed, plan.fixed()) or _order_of_objectives(fixed, plan)
    if difference is not None:
        key, old, new = _spelled(difference, kept.get("space"), plan.details.get("space"))
        raise StudyError(
            f"{directory.path} was begun with {key} = {_shown(old)}, the configuration has {_shown(new)}; "
            "a changed question is a new study: choose another directory"
        )


def _order_of_objectives(fixed: Mapping[str, Any], plan: Plan) -> tuple[str, object, object] | None:
    """Where the objectives are the same in another order: storages keep values by their place, and the first leads."""
    before, after = list(fixed["objectives"]), list(plan.objectives)
    return None if before == after else ("objectives", ", ".join(before), ", ".join(after))


def _spelled(difference: tuple[str, object, object], old: object, new: object) -> tuple[str, object, object]:
    """Of two spaces the first lines that differ: nobody can read their hashes."""
    if difference[0] != "space_hash" or not (isinstance(old, str) and isinstance(new, str)):
        return difference
    lines = itertools.zip_longest(old.splitlines(), new.splitlines(), fillvalue="nothing")
    return next((("space", a.strip(" ,"), b.strip(" ,")) for a, b in lines if a != b), difference)


def first_difference(old: object, new: object, key: str = "") -> tuple[str, object, object] | None:
    """The first place where two trees of plain data differ, as (dotted key, old, new)."""
    before, after = _branches(old), _branches(new)
    if before is None or after is None:
        return None if _listed(old) == _listed(new) else (key, old, new)
    for name in dict.fromkeys([*before, *after]):
        found = first_difference(before.get(name), after.get(name), f"{key}.{name}" if key else name)
        if found is not None:
            return found
    return None


def _branches(value: object) -> Mapping[str, object] | None:
    return cast(Mapping[str, object], value) if isinstance(value, Mapping) else None


def _listed(value: object) -> object:
    """A tuple as the list that JSON makes of it."""
    return list(cast(tuple[object, ...], value)) if isinstance(value, tuple) else value


def versions() -> dict[str, str]:
    """The versions of what a result depends on, and the revision of the code if it lies in a git checkout."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source"
    revision = _revision()
    return found | ({"revision": revision} if revision else {})


def _revision() -> str:
    try:
        here = Path(__file__).resolve().parent
        command = ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
