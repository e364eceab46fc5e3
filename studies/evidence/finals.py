"""From a finished search to studies of its own on fresh seeds: finals of its best few, A/A of its baseline."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import cast

from archsearch.errors import StudyError
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.design.entrants import Entrant, Role
from archsearch.studies.evidence.aa import LEAST_POOL
from archsearch.studies.evidence.conclusions import tie_band
from archsearch.studies.evidence.pool import AA_FOLDER, FIGURES_FILE, FINALS_FOLDER
from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.evidence.status import ended, wanted_of
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import is_held
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.search.rungs import RungOptions


def finals_config(directory: Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """The configuration of the finals of the search in `directory`; once begun, the one that they were begun with.

    overrides: key=value of the search's configuration, as finalists=5 or seeds.finals=8. Errors: StudyError for a
    search that is not finished, that has no baseline to compare with, or that is itself a study of entrants; or for
    finals of entrants that the search would no longer send.
    """
    home = directory / FINALS_FOLDER
    if StudyDirectory(home).exists():
        kept = read_study_config(home, overrides)
        _check_same(directory, kept)
        return kept
    config = _entrants_config(directory, overrides)
    return dataclasses.replace(config, directory=home, ties=_ties(directory, config))


def aa_config(directory: Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """The configuration of an A/A study of the search in `directory`: the baseline that verdicts are about, alone, on
    60 fresh seeds or as many more as seeds.finals asks for. Errors: as `finals_config`.
    """
    home = directory / AA_FOLDER
    if StudyDirectory(home).exists():
        return read_study_config(home, overrides)
    config = _entrants_config(directory, overrides)
    name = str(config.against)
    seeds = dataclasses.replace(config.seeds, finals=max(LEAST_POOL, config.seeds.finals))
    return dataclasses.replace(config, directory=home, entrants={name: config.entrants[name]}, seeds=seeds)


def check_alone(config: StudyConfig) -> None:
    """Whether a configuration is of an A/A study. StudyError."""
    if len(config.entrants) != 1:
        raise StudyError(
            f"an A/A study trains one entrant on many seeds; {len(config.entrants)} are given: "
            "write entrants: {gated_delta_net: {role: baseline}}"
        )


def _entrants_config(directory: Path, overrides: Sequence[str]) -> StudyConfig:
    """The configuration of the search with its entrants in place of its trials."""
    config = read_study_config(directory, overrides)
    evidence = read_evidence(StudyDirectory(directory))
    _check_finished(directory, config, evidence)
    entrants = choose_entrants(evidence, config)
    return dataclasses.replace(
        config,
        entrants=entrants,
        against=config.against or next(name for name, e in entrants.items() if e.role is Role.BASELINE),
        trials=0,
        baselines=(),
        rungs=RungOptions(count=1, free_pass_every=0),
    )


def _ties(directory: Path, config: StudyConfig) -> dict[str, float]:
    """The bands asked for; where the search has an A/A study of its own, not below the half-width that it found."""
    path = directory / AA_FOLDER / FIGURES_FILE
    record = records.read_json(path) or {"objectives": {}}
    with records.read_as_written(path):
        found = cast(Mapping[str, Mapping[str, float]], record["objectives"])
        measured = {name: max(tie_band(name, config.ties), each["half_width"]) for name, each in found.items()}
    return {**config.ties, **measured}


def choose_entrants(evidence: Evidence, config: StudyConfig) -> dict[str, Entrant]:
    """Every baseline at its best rate, the best few of the search, and its best free pass: each variant once.

    The best few are the first of the ranking that are no baselines and whose rule is none of a baseline's variants.
    """
    entrants = {row.name: _entrant(row, Role.BASELINE) for row in evidence.judged if row.is_baseline}
    taken = {row.variant_hash for row in evidence.judged if row.is_baseline}
    candidates = [row for _, row in evidence.ranking if not row.is_baseline and row.variant_hash not in taken]
    chosen = [(row, Role.FINALIST) for row in candidates[: config.finalists]]
    free = [row for row in candidates[config.finalists :] if _is_free_pass(row, config)]
    chosen += [(row, Role.FREE_PASS) for row in free[:1]]
    for row, role in chosen:
        entrants[f"{row.name} (trial {row.number})"] = _entrant(row, role)
    return entrants


def _check_same(directory: Path, kept: StudyConfig) -> None:
    """StudyError where the search went on after its finals began, and others than these would be sent now."""
    config = dataclasses.replace(read_study_config(directory, ()), finalists=kept.finalists)
    now = choose_entrants(read_evidence(StudyDirectory(directory)), config)
    sent = {entrant.trial for entrant in kept.entrants.values()}
    new = [name for name, entrant in now.items() if entrant.trial not in sent]
    if new:
        place = quote(str(kept.directory))
        raise StudyError(
            f"finals must be of the best of their search; {directory} has gone on since, and {new[0]} is not among "
            f"those in {kept.directory}: move that directory away and hold finals again, or go on with the old ones: "
            f"archsearch study resume {place}"
        )


def _is_free_pass(row: Row, config: StudyConfig) -> bool:
    every = config.rungs.free_pass_every
    asked = row.number if row.leader is None else row.leader
    return every > 0 and asked % every == every - 1


def _entrant(row: Row, role: Role) -> Entrant:
    return Entrant(choices=dict(row.choices), role=role, trial=row.number, scores=dict(row.values))


def _check_whole(directory: Path, config: StudyConfig, evidence: Evidence) -> None:
    """StudyError for a search that has trials to come: who asks for fewer trials takes what there is."""
    have, wanted = len(ended(evidence)), wanted_of(StudyDirectory(directory), evidence, config)
    if have >= wanted:
        return
    rates = max(1, len(config.learning_rates))
    enough = max(0, have // rates - len(evidence.plan["baselines"]))
    place = quote(str(directory))
    raise StudyError(
        f"finals need a finished search; {have} of the {wanted} trials of {directory} have ended: go on with "
        f"archsearch study resume {place}, or take it as it is: archsearch study finals {place} trials={enough}"
    )


def _check_finished(directory: Path, config: StudyConfig, evidence: Evidence) -> None:
    """StudyError unless finals would be fair: all of the search has ended, and there is a baseline and a rival."""
    if config.entrants:
        raise StudyError(f"finals are of a search; {directory} is already a study of entrants: read it with report")
    if is_held(StudyDirectory(directory).lock):
        raise StudyError(
            f"finals need a finished search; a driver still runs in {directory}: wait for it, or "
            f"archsearch study stop {quote(str(directory))}"
        )
    unfinished = [row.number for row in evidence.rows if row.outcome is None]
    if unfinished:
        raise StudyError(
            f"finals need a finished search; trial {unfinished[0]} of {directory} has no end: "
            f"archsearch study resume {quote(str(directory))}"
        )
    _check_whole(directory, config, evidence)
    lost = [name for name in config.baselines if name not in {r.name for r in evidence.judged if r.is_baseline}]
    if lost or not config.baselines:
        what = f"its baseline {lost[0]} did not reach its budget" if lost else "it has none"
        raise StudyError(f"finals need the baselines of {directory}; {what}: begin a study whose baselines do")
    if not [row for row in evidence.ended(Outcome.COMPLETE) if not row.is_baseline]:
        raise StudyError(f"finals need a trial beside the baselines; {directory} has no complete one: resume it")
