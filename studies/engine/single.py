"""One trial without a study: its own directory, its own end. What `archsearch train` does.

DIRECTORY/trial.json         the configuration
DIRECTORY/attempt.json, metrics-1.jsonl, checkpoint/, result.json   as in a study's trial directory
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from archsearch.errors import ConfigError, StudyError, first_line
from archsearch.kernels.dispatch import compile
from archsearch.spaces.options import QUANTITIES
from archsearch.studies.design.plan import first_difference, versions
from archsearch.studies.files.directory import Measurement, Result, TrialDirectory
from archsearch.studies.files.lock import driver_lock
from archsearch.studies.files.outcomes import FULL, Outcome, Unstable, classify
from archsearch.studies.training.checkpoint import read_checkpoint
from archsearch.studies.training.config import TrialConfig, read_rule
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.language import counted, plan_trial
from archsearch.studies.training.run import Watch
from archsearch.studies.training.trial import Plan, train_trial
from archsearch.typed_data import to_plain

Show = Callable[[int], AbstractContextManager[Watch | None]]
"""From the tokens of a trial to what watches its steps while it trains."""


def read_trial(path: Path, overrides: Sequence[str] = ()) -> TrialConfig:
    """The configuration in a file; without a directory of its own the trial is kept in runs/<name of the file>."""
    config = read_config(TrialConfig, path, overrides)
    solved = [name for name in QUANTITIES if getattr(config.budget, name) is not None]
    if solved:
        raise ConfigError(
            f"a trial has the sizes that are written; got budget.{solved[0]}, for which only a study solves them: "
            "leave it out"
        )
    return config if config.directory is not None else replace(config, directory=Path("runs") / path.stem)


def run_trial(
    config: TrialConfig,
    show: Show,
    announce: Callable[[str], None],
    on_begin: Callable[[], None] = lambda: None,
) -> Result:
    """Train the trial, or go on with it from its newest checkpoint; its result, which is kept in its directory too.

    announce: told in words of every evaluation, and of what was done before. on_begin: called once nothing is refused.

    Errors: ConfigError, RuleError, BackendError, TaskError before anything is written; StudyError if the directory
    holds another trial or the machine fails, StudyLockedError if another process trains it. A trial that ends as
    unstable or out of memory has a result that says so.
    """
    if config.directory is None:
        raise StudyError("a trial needs a directory; got none; set directory")
    tasks = config.tasks.build()
    rule = read_rule(config.rule)
    compile(rule, config.backend, config.chunk_size, memory=config.memory)
    plan = plan_trial(config, tasks, counted(rule, config.model, config.layer, next(iter(tasks.values()))))
    trial = TrialDirectory(config.directory)
    _begin_or_compare(trial, config)
    with driver_lock(trial.path / "trial.lock"):
        on_begin()
        done = trial.result()
        if done is not None and done.outcome is Outcome.COMPLETE:
            announce("It has had its whole budget: nothing is left to train")
            return done
        if trial.attempt():
            kept = read_checkpoint(trial.checkpoints)
            share = 0.0 if kept is None else kept.tokens / plan.total_tokens
            announce(f"It goes on from its newest checkpoint, at {share:.0%}" if kept else "It begins again")
        trial.raise_fence(trial.attempt() + 1)
        torch.set_num_threads(config.threads)
        return _train(trial, plan, show, announce)


class Alone:
    """Keeps the files of a trial that nobody decides about."""

    rung_fractions: Sequence[float] = (1.0,)

    def __init__(self, trial: TrialDirectory, plan: Plan, announce: Callable[[str], None]) -> None:
        """The attempt is the one that the fence lets write."""
        self._trial = trial
        self._attempt = trial.attempt()
        self._plan = plan
        self._announce = announce

    def check_fence(self) -> None:
        """StudyError if the directory was taken over."""
        if self._trial.attempt() != self._attempt:
            raise StudyError(f"{self._trial.path} was taken over by attempt {self._trial.attempt()}; this one ends")

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """Add an evaluation to the attempt's metrics. Unstable if a value is not finite."""
        lost = [name for name, value in values.items() if not math.isfinite(value)]
        if lost:
            raise Unstable(f"{lost[0]} is {values[lost[0]]} at {fraction:.0%} of the budget")
        self.check_fence()
        tokens = max(1, round(fraction * self._plan.total_tokens))
        self._trial.append_measurement(Measurement(self._attempt, tokens, fraction, values, seconds))
        measured = {name: value for name, value in values.items() if name not in (self._plan.constants or {})}
        shown = "  ".join(f"{name} {value:.4g}" for name, value in measured.items())
        self._announce(f"{fraction:4.0%}  {shown}")

    def goes_on(self, fraction: float) -> bool:
        """Always."""
        return True


def _train(trial: TrialDirectory, plan: Plan, show: Show, announce: Callable[[str], None]) -> Result:
    supervisor = Alone(trial, plan, announce)
    outcome, message, details = Outcome.COMPLETE, "", cast(Mapping[str, Any], {})
    try:
        with show(plan.total_tokens) as watch:
            details = train_trial(plan, trial.checkpoints, supervisor, watch)
    except OSError as error:
        raise StudyError(_machine_fault(trial.path, error)) from error
    except Exception as error:
        outcome = classify(error)
        if not outcome.blames_the_rule:
            raise
        message = first_line(error)
    curve = trial.curve()
    last = curve[-1] if curve else Measurement(trial.attempt(), 0, 0.0, {}, 0.0)
    if outcome is Outcome.COMPLETE and last.fraction < 1:
        raise StudyError(
            f"{trial.path} has the checkpoint of its whole budget and not the evaluation: restore its metrics from a "
            f"copy, or remove {trial.checkpoints} to train it again"
        )
    result = Result(outcome, trial.attempt(), last.tokens, last.values, last.seconds, message, details)
    trial.write_result(result)
    return result


def _begin_or_compare(trial: TrialDirectory, config: TrialConfig) -> None:
    plain = cast(dict[str, Any], to_plain(replace(config, directory=None)))
    kept = trial.proposal()
    if kept is None:
        if trial.path.exists() and any(trial.path.iterdir()):
            raise StudyError(f"a trial needs a directory of its own; {trial.path} holds other files; choose another")
        trial.write_proposal({"config": plain, "rule_hash": read_rule(config.rule).hash, "versions": versions()})
        return
    difference = first_difference(kept.get("config"), plain)
    if difference is not None:
        key, old, new = difference
        raise StudyError(
            f"{trial.path} was begun with {key} = {old}, the configuration has {new}; choose another directory"
        )


def _machine_fault(path: Path, error: OSError) -> str:
    full = error.errno in FULL
    what = "the disk is full: free some space" if full else f"{error.strerror or error}"
    return f"{path} could not be written: {what}; run the same command again to go on from the newest checkpoint"
