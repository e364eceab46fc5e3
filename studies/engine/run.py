"""A study from its configuration: the question, the space, the workers; and the engine carries it out."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from archsearch.errors import ArchsearchError, ConfigError, StudyError
from archsearch.holes import Chosen, OneOf
from archsearch.kernels.dispatch import compile
from archsearch.mixers.lookup import find_rule
from archsearch.mixers.zoo import rules
from archsearch.spaces.budgets import Setting, sized
from archsearch.spaces.resolution import baseline, middle, resolve, suggesting
from archsearch.spaces.space import Point, Space
from archsearch.studies.design.config import StudyConfig, config_text
from archsearch.studies.design.entrants import SEED, enqueued, entrant_points, entrant_records, resolve_seeded
from archsearch.studies.design.plan import Plan
from archsearch.studies.design.points import Candidate
from archsearch.studies.design.rates import at_other_rates
from archsearch.studies.engine.importing import imported_from
from archsearch.studies.engine.limits import Limits, Patience
from archsearch.studies.engine.session import carry_out
from archsearch.studies.files import records
from archsearch.studies.files.board import check_tensorboard
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.origins import BASELINE, ENTRANT
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import check_sampler
from archsearch.studies.search.storage import check_storage
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.task import Part, Task
from archsearch.studies.training.config import task_tokens
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.language import COUNTS, counted
from archsearch.studies.training.parallel import check_shares
from archsearch.studies.training.run import steps_of
from archsearch.studies.training.timing import STEP_TIME
from archsearch.studies.workers.executor import Executor, Resources, members
from archsearch.typed_data import to_plain


def run_study(
    config: StudyConfig | Path | str,
    *,
    announce: Callable[[str], None] = lambda text: None,
    on_begin: Callable[[], None] = lambda: None,
    on_look: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
    workers: Callable[[StudyConfig], Executor] | None = None,
    force_unlock: bool = False,
) -> StudyDirectory:
    """Begin or resume the study that `config` (or the YAML file of that path) asks for, and carry it to its end.

    announce: told in words what happens. on_begin: called once nothing of the question is refused. on_look: called
    often while it runs. on_stop: called if it was asked to stop and has not come to its end. workers: what trains; None
    is what the configuration says. force_unlock: take the study from a driver that is not known to live.
    Returns the study's directory. Errors: ConfigError, SpaceError, TaskError for a bad question, before anything is
    written; StudyError for a directory of another question; StudyLockedError; BugError.
    """
    if not isinstance(config, StudyConfig):
        config = read_config(StudyConfig, Path(config))
    asked = question_of(config)
    space, tasks, plan = asked.space, asked.tasks, asked.plan
    check_models(space, plan, tasks)
    if config.tensorboard:
        check_tensorboard()
    if config.resources.ray_address is None:
        check_machine(config)
    if config.resources.ranks > 1:
        for task in tasks.values():
            sequences, _ = steps_of(task, space.training, task.length)
            check_shares(sequences, config.resources.ranks, graphs=config.graphs)
    older = imported_from(config.imported, space, plan)
    directory = StudyDirectory(config.directory)

    def begin() -> None:
        records.write_text(directory.path / "config.yaml", config_text(config))
        on_begin()

    ended = carry_out(
        directory,
        plan,
        resolve=lambda choose: (
            resolve_seeded(space, choose) if config.entrants else Candidate(space.resolve(choose), space.hash)
        ),
        suggest=suggesting,
        executor=lambda: (workers or workers_of)(config),
        limits=Limits(config.trials, config.resources.time_limit),
        patience=Patience(silence=config.resources.silence),
        storage=config.storage,
        announce=announce,
        on_look=on_look,
        companions=lambda choices: () if config.entrants else at_other_rates(choices, config.learning_rates),
        replicate=config.seeds.replicate,
        taken_over=older.take_over,
        imported=older.choices,
        on_begin=begin,
        force_unlock=force_unlock,
    )
    if not ended:
        on_stop()
    return directory


@dataclass(frozen=True, slots=True)
class Question:
    """What a configuration asks. written: the space as it stands there. space: the same, its sizes to be solved."""

    written: Space
    space: Space
    tasks: Mapping[str, Task]
    plan: Plan


def question_of(config: StudyConfig) -> Question:
    """What a study is about, with all that can be refused before its models are looked at and on any machine. Errors:
    ConfigError, SpaceError, TaskError; StudyError for a storage that does not answer.
    """
    written = config.load_space()
    check_ranges(written)
    tasks = config.tasks.build()
    space = sized_for(written, tasks)
    plan = make_plan(config, space, tasks)
    check_storage(config.storage)
    return Question(written, space, tasks, plan)


def check_ranges(space: Space) -> None:
    """Whether the plainest point may take both ends of every range of numbers that it meets. ConfigError."""
    for path, hole in space.holes.items():
        if isinstance(hole, OneOf):
            continue
        for end in (hole.low, hole.high):
            try:
                space.resolve(lambda at, other: end if at == path else middle(other))  # noqa: B023
            except ArchsearchError as error:
                raise ConfigError(
                    f"{path} has a range from {hole.low} to {hole.high}, whose end {end} is none: {error}"
                ) from error


def sized_for(space: Space, tasks: Mapping[str, Task]) -> Space:
    """`space` with the sizes of every point solved for its budget, as the model of the first task costs. SpaceError for
    a budget that names no rule.
    """
    first = next(iter(tasks.values()))
    return sized(space, Setting(first.vocabulary, first.length))


def check_models(space: Space, plan: Plan, tasks: Mapping[str, Task]) -> None:
    """Whether the baselines' models can be built, or the plainest point's where there are none, and one of them within
    the budget: what fits none of them is a mistake in the question. ConfigError.
    """
    points = {
        name: resolve(space, {path: value for path, value in choices.items() if path != SEED})
        for name, choices in plan.baselines.items()
    }
    plainest = {"the plainest point": space.resolve(lambda path, hole: middle(hole))}
    for name, point in (points or plainest).items():
        try:
            counted(point.rule, point.model, point.layer, next(iter(tasks.values())))
        except ArchsearchError as error:
            raise ConfigError(f"no model can be built for {name}: {error}") from error
    looked_at = {**points, **plainest}
    if all(point.missed for point in looked_at.values()):
        name, point = next(iter(looked_at.items()))
        quantity, error = next(iter(point.missed.items()))
        raise ConfigError(
            f"budget.{quantity} must be one that the space's sizes can meet; the nearest of {name} miss it by "
            f"{error:.1%}; change it, or the sizes that the space writes"
        )


def check_machine(config: StudyConfig) -> None:
    """Whether a trial can run here at all. StudyError, BackendError."""
    compile(rules["linear"], config.backend)
    cores = os.cpu_count() or 1
    if config.resources.cpus > cores:
        raise StudyError(f"a trial needs {config.resources.cpus} CPUs; this machine has {cores}; lower resources.cpus")
    gpus = config.resources.gpus or 0.0
    if gpus > torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise StudyError(f"a trial needs {gpus:g} GPUs; this machine has {found}; lower resources.gpus")
    if config.graphs and not torch.cuda.device_count():
        raise StudyError("graphs need trials with a GPU; this machine has none; leave graphs out")


def make_plan(config: StudyConfig, space: Space, tasks: Mapping[str, Task]) -> Plan:
    """The question of a study. SpaceError, ConfigError if it has no answer."""
    tokens = task_tokens(config.tasks, space.budget)
    objectives = _objectives(config, tasks)
    _check_ties(config.ties, objectives)
    entrants = entrant_points(space, config.entrants)
    baselines = enqueued(entrants, config.seeds) or _baselines(space, config.baselines)
    asked, shown = _of_entrants(config, entrants)
    if not entrants:
        check_sampler(config.sampler, space.holes, list(objectives))
    return Plan(
        objectives=objectives,
        rungs=RungOptions(count=1, free_pass_every=0) if entrants else config.rungs,
        sampler=config.sampler,
        seed=config.seeds.search,
        total_tokens=sum(tokens.values()),
        holes=len(space.holes),
        baselines=baselines,
        origin=ENTRANT if entrants else BASELINE,
        question={
            **asked,
            "space_hash": space.hash,
            "tasks": {name: {"data_hash": task.data_hash, "tokens": tokens[name]} for name, task in tasks.items()},
            "evaluations": config.evaluations,
            **({"averaged": config.averaged} if config.averaged > 1 else {}),
        },
        details={
            **shown,
            "space": str(space),
            "space_name": config.space if isinstance(config.space, str) else "inline",
            "config": to_plain(config),
            "tasks": {name: _task_record(task, tokens[name]) for name, task in tasks.items()},
        },
    )


def _baselines(space: Space, names: Sequence[str]) -> dict[str, dict[str, Chosen]]:
    """The choices of each named rule. SpaceError for one that the space does not hold; ConfigError for two names of one
    point.
    """
    found: dict[str, dict[str, Chosen]] = {}
    for name in names:
        choices = baseline(space, name, find_rule(name))
        same = next((other for other in found if found[other] == choices), None)
        if same is not None:
            raise ConfigError(f"baselines must be different points; {same} and {name} are one: leave one out")
        found[name] = choices
    return found


def _of_entrants(config: StudyConfig, points: Mapping[str, Point]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a study of entrants fixes besides, before its first seed runs, and what its readers want to know of them."""
    if not points:
        return {}, {}
    asked = {
        "entrants": {name: point.variant_hash for name, point in points.items()},
        "seeds": list(config.seeds.fresh),
        "against": config.against or next(iter(points)),
        "ties": dict(config.ties),
        "part": Part.TEST.value,
    }
    return asked, {"entrants": entrant_records(points, config.entrants)}


def _objectives(config: StudyConfig, tasks: Mapping[str, Task]) -> dict[str, Direction]:
    """The objectives asked for, by default the tasks' own. ConfigError for one that no trial measures."""
    own = {task.objective.name: task.objective.direction for task in tasks.values()}
    if not config.objectives:
        return own
    known = {**dict.fromkeys((*COUNTS, STEP_TIME), Direction.MINIMIZE), **own}
    for name, direction in config.objectives.items():
        if direction is not known.get(name, direction):
            wanted = known[name].value
            raise ConfigError(f"objectives.{name} must be {wanted}: it is better that way; got {direction.value}")
    if STEP_TIME in config.objectives and config.resources.shard:
        raise ConfigError(
            f"objectives.{STEP_TIME} is measured on one device, which resources.shard spares; leave one of them out"
        )
    _check_measured([name for name in config.objectives if name not in known], tasks, list(known))
    return dict(config.objectives)


def _check_ties(ties: Mapping[str, float], objectives: Mapping[str, Direction]) -> None:
    """Whether each band is of an objective: a misspelt one would leave the default in force. ConfigError."""
    for name in ties:
        if name not in objectives:
            raise ConfigError(f"ties.{name} is of no objective; the objectives are {', '.join(objectives)}")


def _check_measured(names: Sequence[str], tasks: Mapping[str, Task], known: Sequence[str]) -> None:
    """Whether an evaluation has a value of each name; asked of a model that knows nothing."""
    if not names:
        return
    measured = list(known)
    for task in tasks.values():
        measured += task.evaluate(lambda tokens, task=task: torch.zeros(*tokens.shape, task.vocabulary))
    for name in names:
        if name not in measured:
            nearest = "".join(f"; did you mean {match}?" for match in get_close_matches(name, measured, n=1))
            every = ", ".join(dict.fromkeys(measured))
            raise ConfigError(f"objectives.{name} is measured by no task{nearest or '.'} Trials measure {every}")


def _task_record(task: Task, tokens: int) -> dict[str, Any]:
    """What readers of a study want to know of a task: chance and other trivial predictors among it."""
    return {
        "description": task.description,
        "objective": task.objective.name,
        "direction": task.objective.direction.value,
        "tokens": tokens,
        "data_hash": task.data_hash,
        "baselines": dict(task.baselines()),
    }


def workers_of(config: StudyConfig) -> Executor:
    """What trains, as the configuration says."""
    return ray_workers(config) if config.resources.workers == "ray" else local_workers(config)


def local_workers(config: StudyConfig) -> Executor:
    """Processes of this machine that train."""
    from archsearch.studies.workers.local_executor import LocalExecutor

    return LocalExecutor(config.resources)


def ray_workers(config: StudyConfig) -> Executor:
    """Ray actors that train, on this machine or the cluster that the configuration names."""
    from archsearch.studies.workers.body import TrainingBody
    from archsearch.studies.workers.ray_executor import RayExecutor

    def body(given: Resources) -> TrainingBody:
        return TrainingBody(given.cpus, given.gpus or 0.0)

    resources = config.resources
    if resources.ranks > 1:
        from archsearch.studies.workers.ray_group import GroupExecutor

        threads = max(1, resources.cpus // resources.ranks)
        return GroupExecutor(
            lambda given: TrainingBody(threads, 1.0 if given.gpus else 0.0, resources.shard), resources
        )
    return RayExecutor(body, resources, members(resources, resources.gpus or 0.0))
