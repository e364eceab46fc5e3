"""A trial's trained model, handed to the exporter with what is known of its making."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsearch.dsl import Rule
from archsearch.errors import ExportError, StudyError
from archsearch.mixers.export.check import Report, run_selftest
from archsearch.mixers.export.export import check_target, export_module
from archsearch.mixers.export.module import Module, Origin
from archsearch.mixers.layer.mixer import layer_of
from archsearch.mixers.zoo import rules
from archsearch.studies.design.entrants import Role
from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.evidence.winner import find_winner
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory, TrialDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.training.checkpoint import read_checkpoint
from archsearch.studies.training.config import TrialConfig, read_rule
from archsearch.studies.training.language import COUNTS, model_weights
from archsearch.studies.workers.body import trial_config
from archsearch.typed_data import from_plain

TEXT = "text"
"""The task whose model speaks: it is the one exported where there are several."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A trial with its full budget. origin: what is known of it, but for the command that exports it. why: how a
    study's trial was chosen; empty where it was named.
    """

    trial: TrialDirectory
    config: TrialConfig
    task: str
    origin: Origin
    why: str = ""


def export_and_check(
    source: str | Path,
    target: str | Path,
    *,
    overwrite: bool = False,
    name: str | None = None,
    announce: Callable[[str], None] = lambda why: None,
) -> tuple[Path, Report]:
    """Export the winner of a study (of its finals, if they have ended), or the trial whose directory `source` is, and
    run the module's own test.

    name: of the module; by default the rule's, in the zoo where it has one there. announce: told which trial of a study
    is taken, and why. Returns the module's directory and what its test said in a process without archsearch. Errors:
    StudyError for a source that is none; ExportError for a target that exists or a trial without its full budget.
    """
    check_target(Path(target), overwrite=overwrite)
    trained = find_trained(Path(source))
    if trained.why:
        announce(trained.why)
    checkpoint = read_checkpoint(trained.trial.checkpoints)
    if checkpoint is None:
        raise ExportError(f"an export needs the trial's checkpoint; {trained.trial.path} has none: train it again")
    path = export_module(
        _module(trained, name),
        model_weights(checkpoint, trained.task),
        target,
        origin=_with_command(trained.origin, _command(source, target, name)),
        overwrite=overwrite,
    )
    return path, run_selftest(path)


def find_trained(source: Path) -> Trained:
    """The trial that `source` means: a study's winner, a trial of a study, a trial of its own."""
    if (source / "study.json").exists():
        return _of_winner(source)
    if (source.parent.parent / "study.json").exists() and source.name.isdigit():
        return _of_study(source)
    proposal = TrialDirectory(source).proposal()
    if proposal is None or "config" not in proposal:
        raise StudyError(f"an export needs the directory of a study or of a trial; {source} is neither")
    return _of_single(TrialDirectory(source), proposal)


def _of_winner(source: Path) -> Trained:
    winner = find_winner(StudyDirectory(source))
    if winner is None:
        raise _untrained(source)
    return _of_row(winner.directory, winner.evidence, winner.row, winner.why)


def _of_study(source: Path) -> Trained:
    directory = StudyDirectory(source.parent.parent)
    evidence = read_evidence(directory)
    complete = [row for row in evidence.ended(Outcome.COMPLETE) if row.number == int(source.name)]
    if not complete:
        raise _untrained(source)
    return _of_row(directory, evidence, complete[0])


def _of_row(directory: StudyDirectory, evidence: Evidence, row: Row, why: str = "") -> Trained:
    trial = directory.trial(row.number)
    config = trial_config(evidence.plan, trial)
    task = _spoken_task(config)
    with records.read_as_written(directory.path / "study.json"):
        origin = _origin(evidence, row, task, why)
    return Trained(trial, config, task, origin, why)


def _of_single(trial: TrialDirectory, proposal: Mapping[str, Any]) -> Trained:
    config = from_plain(TrialConfig, proposal["config"], str(trial.path / "trial.json"))
    result = trial.result()
    if result is None or result.outcome is not Outcome.COMPLETE:
        raise _untrained(trial.path)
    task = _spoken_task(config)
    facts = {"task": task, "seed": config.seed, "tokens": result.tokens, "versions": dict(proposal["versions"])}
    data = config.tasks.chosen[task].build().description
    values = {name: value for name, value in result.values.items() if name not in COUNTS}
    return Trained(trial, config, task, Origin(trial=facts, results=[values], data=data))


def _untrained(source: Path) -> ExportError:
    return ExportError(f"an export needs a trial with its full budget; {source} has none: let it go on")


def _spoken_task(config: TrialConfig) -> str:
    return TEXT if TEXT in config.tasks.chosen else next(iter(config.tasks.chosen))


def _module(trained: Trained, name: str | None) -> Module:
    config, rule = trained.config, read_rule(trained.config.rule)
    known = next((zoo_name for zoo_name in rules if rules[zoo_name].hash == rule.hash), rule.name)
    return Module(
        name=known if name is None else name,
        rule=Rule(known, *rule.steps),
        layer=layer_of(rule, config.layer),
        width=config.model.width,
        heads=config.model.heads,
        model=config.model,
        vocabulary=config.tasks.chosen[trained.task].build().vocabulary,
        text=trained.task == TEXT,
    )


def _origin(evidence: Evidence, row: Row, task: str, why: str) -> Origin:
    others = evidence.ended(Outcome.COMPLETE) if evidence.entrants else [other for _, other in evidence.ranking]
    rivals = [other for other in others if other.number != row.number and _is_rival(evidence, other, row)]
    return Origin(
        trial={
            "study": str(evidence.plan["fixed"]["space_hash"])[:16],
            "number": row.number,
            **({"chosen": why} if why else {}),
            "task": task,
            "seed": row.seed,
            "tokens": row.tokens,
            "choices": dict(row.choices),
            "versions": dict(evidence.plan["versions"]),
        },
        results=[_result(evidence, other) for other in (row, *rivals)],
        data=str(evidence.plan["tasks"][task]["description"]),
    )


def _is_rival(evidence: Evidence, other: Row, row: Row) -> bool:
    """Whether a card shows `other` beside `row`: a baseline, in finals on the same seed."""
    if other.entrant is None:
        return other.is_baseline
    return other.seed == row.seed and evidence.entrants[other.entrant]["role"] == Role.BASELINE.value


def _result(evidence: Evidence, row: Row) -> Mapping[str, Any]:
    return {"variant": row.name, "trial": row.number, **{name: row.values[name] for name in evidence.objectives}}


def _command(source: str | Path, target: str | Path, name: str | None) -> str:
    """What writes the module again."""
    named = [] if name is None else ["--name", name]
    return shlex.join(["archsearch", "export", str(source), str(target), *named])


def _with_command(origin: Origin, command: str) -> Origin:
    return Origin(trial=origin.trial, results=origin.results, data=origin.data, command=command)
