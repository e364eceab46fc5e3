"""What a study would do, without training: every structure that it draws compiled and built, and what a trial costs."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from archsearch.dsl import Rule
from archsearch.errors import ArchsearchError, ConfigError, first_line
from archsearch.holes import Choose, Chosen
from archsearch.kernels.dispatch import compile
from archsearch.mixers.layer.fed import as_fed
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.spaces.budgets import Targets, targets
from archsearch.spaces.commands import choice_text
from archsearch.spaces.counting import Census, census
from archsearch.spaces.resolution import at_random, resolve, structures
from archsearch.spaces.sizes import Setting
from archsearch.spaces.space import Point, Space
from archsearch.studies.design.config import StudyConfig
from archsearch.studies.design.plan import Plan
from archsearch.studies.engine.measured import Speeds, speeds
from archsearch.studies.engine.run import question_of
from archsearch.studies.tasks.task import Task
from archsearch.studies.training.language import counted
from archsearch.studies.training.validity import why_unsound

DRAWN = 64
"""Structures that are checked; of a space with more, so many points drawn at random."""


@dataclass(frozen=True, slots=True)
class CheckedPoint:
    """One point. name: a baseline's, or its choices. sizes: width, MLP ratio, K and V of the model. costs: the exact
    counts. seconds: of training, from trials that ran; None where none did. missed: budgets that it cannot meet, a line
    each. error: why it cannot be built, in one line.
    """

    name: str
    choices: Mapping[str, Chosen]
    rule_hash: str = ""
    variant_hash: str = ""
    sizes: Mapping[str, float] | None = None
    costs: Mapping[str, float] | None = None
    seconds: float | None = None
    missed: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class StudyCheck:
    """A study before it runs. whole: whether `points` are all structures. tokens: of one trial, all its tasks.
    rates: at how many learning rates each structure is trained.
    """

    plan: Plan
    census: Census
    targets: Targets
    tokens: int
    trials: int
    rates: int
    whole: bool
    points: tuple[CheckedPoint, ...]

    @property
    def bad(self) -> list[CheckedPoint]:
        """The points that cannot be built."""
        return [point for point in self.points if point.error]

    @property
    def over(self) -> bool:
        """Whether no point meets the budget, so that nothing would be trained."""
        return all(point.missed or point.error for point in self.points)

    @property
    def spent_after(self) -> int | None:
        """How many trials there are at most, baselines apart, where the study asks for more; else None. Only known
        where all structures were looked at and no number is drawn from a range.
        """
        if not self.whole or self.census.ranges:
            return None
        variants = {point.variant_hash for point in self.points if point.variant_hash}
        named = {point.variant_hash for point in self.points[: len(self.plan.baselines)]}
        most = len(variants - named) // self.rates
        return most if most < self.trials else None


def check_study(
    config: StudyConfig, most: int = DRAWN, on_point: Callable[[str], None] = lambda name: None
) -> StudyCheck:
    """Draw points of the study that `config` asks for, build each model on the meta device, count what it costs.

    most: points drawn where the space has more structures. on_point: told the name of each before it is built.
    Errors: ConfigError, SpaceError, TaskError for a question that has no answer; a point that cannot be built is no
    error, but a line of the result.
    """
    if most < 1:
        raise ConfigError(f"a check needs at least one point; got {most}")
    question = question_of(config)
    space, tasks, plan = question.space, question.tasks, question.plan
    counts = census(space)
    whole = counts.whole and counts.structures + len(counts.broken) <= most
    first = next(iter(tasks.values()))
    asked = targets(question.written, Setting(first.vocabulary, first.length))
    checker = _Checker(tasks, asked, plan.total_tokens, speeds(config.directory), on_point, {})
    named = [checker.checked(name, _drawn(space, choices)) for name, choices in plan.baselines.items()]
    drawn = _structures(space) if whole else _random_points(space, most, config.seeds.search)
    points = [checker.checked(_name(choices, whole=whole), (choices, point)) for choices, point in drawn]
    rates = 1 if config.entrants else max(1, len(config.learning_rates))
    return StudyCheck(plan, counts, asked, plan.total_tokens, config.trials, rates, whole, (*named, *points))


Drawn = tuple[Mapping[str, Chosen], Point | ArchsearchError]
"""The choices, and the point or why there is none."""


def _name(choices: Mapping[str, Chosen], *, whole: bool) -> str:
    """The choices in words; of a structure without those of its ranges, which are their middles."""
    return choice_text({path: chosen for path, chosen in choices.items() if not (whole and isinstance(chosen, float))})


def _drawn(space: Space, choices: Mapping[str, Chosen]) -> Drawn:
    try:
        return choices, resolve(space, {path: choices[path] for path in choices if path in space.holes})
    except ArchsearchError as error:
        return choices, error


def _structures(space: Space) -> Iterator[Drawn]:
    """All of them; ranges are filled by their middle."""
    yield from structures(lambda choose: _attempt(space, choose))


def _random_points(space: Space, number: int, seed: int) -> Iterator[Drawn]:
    for index in range(number):
        choices: dict[str, Chosen] = {}
        draw = at_random(random.Random(f"{seed}/{index}"))
        yield choices, _attempt(space, lambda path, hole: choices.setdefault(path, draw(path, hole)))  # noqa: B023


def _attempt(space: Space, choose: Choose) -> Point | ArchsearchError:
    try:
        return space.resolve(choose)
    except ArchsearchError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Checker:
    """Compiles each rule once in a layer and builds each model. compiled: why it cannot be, else empty."""

    tasks: Mapping[str, Task]
    targets: Targets
    tokens: int
    speeds: Speeds
    on_point: Callable[[str], None]
    compiled: dict[str, str]

    def checked(self, name: str, drawn: Drawn) -> CheckedPoint:
        """What is known of a point."""
        choices, point = drawn
        self.on_point(name)
        if isinstance(point, ArchsearchError):
            return CheckedPoint(name, choices, error=first_line(point))
        try:
            return self._built(name, point)
        except ArchsearchError as error:
            return CheckedPoint(name, choices, error=first_line(error))

    def _built(self, name: str, point: Point) -> CheckedPoint:
        rule_hash = point.rule.hash
        _compile_once(point.rule, point.layer, self.compiled)
        for task in self.tasks.values():
            with torch.device("meta"):
                LanguageModel(point.rule, point.model, point.layer, task.vocabulary, backend="torch")
        costs = counted(point.rule, point.model, point.layer, next(iter(self.tasks.values())))
        return CheckedPoint(
            name=name,
            choices=point.choices,
            rule_hash=rule_hash,
            variant_hash=point.variant_hash,
            sizes=_sizes(point),
            costs=costs,
            seconds=self.speeds.seconds(rule_hash, costs["flops_per_token"], self.tokens),
            missed=tuple(self.targets.words(point)),
        )


def _compile_once(rule: Rule, layer: Layer, compiled: dict[str, str]) -> None:
    """The rule's plan, its generated kernels' source and its promises in a layer; an error is raised for every point
    that has the rule so fed.
    """
    key = f"{rule.hash} {as_fed(rule, layer).hash}"
    if key not in compiled:
        try:
            failed = why_unsound(rule, layer) if compile(rule, "torch").source else ("no source was generated",)
            compiled[key] = next(iter(failed), "")
        except ArchsearchError as error:
            compiled[key] = first_line(error)
    if compiled[key]:
        raise ConfigError(compiled[key])


def _sizes(point: Point) -> dict[str, float]:
    key = point.layer.head_dim or point.model.width // point.model.heads
    return {
        "width": point.model.width,
        "mlp_ratio": point.model.mlp_width / point.model.width,
        "key": key,
        "value": round(key * point.layer.expand_v),
    }
