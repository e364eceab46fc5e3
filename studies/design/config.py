"""What a user writes to ask for a study: one YAML file, read into these."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import yaml

from archsearch.errors import ConfigError, StudyError
from archsearch.holes import has_holes
from archsearch.spaces.lookup import find_space
from archsearch.spaces.plain import with_holes
from archsearch.spaces.space import Space
from archsearch.studies.design.entrants import Entrant, Seeds
from archsearch.studies.design.rates import check_rates, with_rates
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.search.storage import JOURNAL, without_password
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.training.config import check_evaluations
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.graph import check_alone
from archsearch.studies.workers.executor import Resources
from archsearch.typed_data import to_plain

T = TypeVar("T")

MOST_TRIALS = 1_000_000


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """A study.

    space: a ready space, path/to/file.py (its SPACE) or path/to/file.py:NAME, path/to/file.yaml, or what such a file
    holds (`archsearch.spaces.plain`). layer, model, training, budget: values and holes that replace the space's.
    objectives: names of measured values, by default each task's own; the first one leads.
    trials: proposals beside the baselines. evaluations: how often a trial is evaluated, rungs apart, 1 .. 1,000.
    averaged: of an objective's value at the end, the mean over so many of the newest evaluations, in 1 .. evaluations;
    several lower its noise, and count in how fast it was reached where they lie far apart. backend: of the mixers.
    graphs: whether trials replay their steps as CUDA graphs. checks: whether a rule is held against the validity
    ladder before it is trained. directory: where the study lives.
    storage: of Optuna's records: journal, a file of the directory, or the URL of a database, without its password.
    tensorboard: whether each trial writes its evaluations for TensorBoard too.
    learning_rates: a grid at which every structure is trained, baselines too; none leaves the rate to the space.
    imported: an older study, whose trials count here where they are points of the space, trained as this one asks.
    finalists: how many of a finished search its finals retrain beside the baselines. against: the baseline that
    verdicts are about; null is the first. ties: by objective, how small a difference does not matter. entrants: points
    trained on every fresh seed; a study that has some proposes nothing.
    """

    space: str | Mapping[str, Any]
    tasks: Tasks
    directory: Path
    objectives: Mapping[str, Direction] = field(default_factory=dict[str, Direction])
    trials: int = 20
    baselines: tuple[str, ...] = ()
    layer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: Mapping[str, Any] = field(default_factory=dict[str, Any])
    budget: Mapping[str, Any] = field(default_factory=dict[str, Any])
    evaluations: int = 8
    averaged: int = 1
    rungs: RungOptions = field(default_factory=RungOptions)
    sampler: SamplerOptions = field(default_factory=SamplerOptions)
    seeds: Seeds = field(default_factory=Seeds)
    resources: Resources = field(default_factory=Resources)
    backend: Literal["auto", "reference", "torch", "triton"] = "auto"
    graphs: bool = False
    checks: bool = True
    storage: str = JOURNAL
    tensorboard: bool = False
    learning_rates: tuple[float, ...] = ()
    imported: Path | None = None
    finalists: int = 3
    against: str | None = None
    ties: Mapping[str, float] = field(default_factory=dict[str, float])
    entrants: Mapping[str, Entrant] = field(default_factory=dict[str, Entrant])

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if without_password(self.storage) != self.storage:
            raise ConfigError(
                f"storage must be without a password, which the study's files would keep; got "
                f"{without_password(self.storage)}; leave it to ~/.pgpass or PGPASSWORD"
            )
        if not 0 <= self.trials <= MOST_TRIALS:
            raise ConfigError(f"trials must be in 0 .. {MOST_TRIALS:,}; got {self.trials:,}")
        if not (self.trials or self.baselines or self.entrants):
            raise ConfigError("a study needs trials, baselines or entrants; got none of them; set trials, say to 20")
        check_evaluations(self.evaluations)
        if not 1 <= self.averaged <= self.evaluations:
            raise ConfigError(f"averaged must be in 1 .. {self.evaluations}, the evaluations; got {self.averaged}")
        twice = [name for name in self.baselines if self.baselines.count(name) > 1]
        if twice:
            raise ConfigError(f"baselines must differ; got {twice[0]} twice; leave one out")
        if self.graphs and self.resources.gpus == 0:
            raise ConfigError("graphs need trials with a GPU; got resources.gpus 0; leave graphs out")
        if self.graphs:
            check_alone(self.resources.ranks)
        check_rates(self.learning_rates)
        if self.finalists < 1:
            raise ConfigError(f"finalists must be >= 1; got {self.finalists}")
        for name, band in self.ties.items():
            if band < 0:
                raise ConfigError(f"ties.{name} must be >= 0; got {band}")
        if self.entrants and self.trials:
            raise ConfigError(f"trials must be 0 beside entrants: a study of them proposes nothing; got {self.trials}")
        known = list(self.entrants or self.baselines)
        if self.against is not None and self.against not in known:
            raise ConfigError(f"against must be one of {', '.join(known) or 'the baselines'}; got {self.against!r}")

    def load_space(self) -> Space:
        """The space with this configuration's values in it. SpaceError or ConfigError if it cannot be."""
        space = find_space(self.space)
        filled = dataclasses.replace(
            space,
            layer=overridden(space.layer, self.layer, "layer"),
            model=overridden(space.model, self.model, "model"),
            training=overridden(space.training, self.training, "training"),
            budget=overridden(space.budget, self.budget, "budget"),
        )
        return with_rates(filled, self.learning_rates)


def overridden(part: T, values: Mapping[str, Any], where: str) -> T:
    """Options with some of their fields replaced by plain data; a hole may be replaced, and replace a value.

    ConfigError or HoleError for a bad one.
    """
    if not values:
        return part
    assert dataclasses.is_dataclass(part) and not isinstance(part, type)
    kept = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in values}
    plain = cast(Mapping[str, Any], to_plain(part))
    closed = {name: plain[name] for name, value in kept.items() if not has_holes(value)}
    parsed = with_holes(type(part), {**closed, **values}, where)
    return dataclasses.replace(part, **{name: getattr(parsed, name) for name in values})


def config_text(config: StudyConfig) -> str:
    """The configuration as YAML, as a study's directory keeps it."""
    return str(yaml.safe_dump(to_plain(config), sort_keys=False))


def read_study_config(directory: Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """The configuration that the study in `directory` was last run with, wherever the directory lies now.

    StudyError if there is none; ConfigError for bad overrides.
    """
    StudyDirectory(directory).plan()
    path = directory / "config.yaml"
    if not path.exists():
        raise StudyError(
            f"{path} is gone: restore it from a copy of the study, or go on with the study's own file: "
            "archsearch study run CONFIG"
        )
    if any(override.partition("=")[0] == "directory" for override in overrides):
        raise ConfigError(
            f"directory must be left out: the study lies in {directory}; move it there, or begin a new one"
        )
    config = read_config(StudyConfig, path, overrides)
    return dataclasses.replace(config, directory=directory)
