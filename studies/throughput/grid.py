"""The grid whose trials are counted, and the question of a study that trains it."""

import functools
from dataclasses import dataclass, replace
from typing import Any

from archsearch.holes import Choose, Integer, OneOf, one_of
from archsearch.mixers.layer.planning import layer_of
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules
from archsearch.spaces.options import Budget, Training
from archsearch.studies.design.plan import Plan
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.typed_data import to_plain

RULES = ("gated_delta_net", "delta_net", "simple_gla", "kda")
RATES = (1e-3, 10**-2.5, 1e-2, 10**-1.5)


@dataclass(frozen=True, slots=True)
class Grid:
    """What is trained. batch: sequences of a step. seeds: of every rule and rate."""

    task: MqarOptions
    model: Model
    batch: int
    steps: int
    seeds: int
    names: tuple[str, ...] = RULES
    rates: tuple[float, ...] = RATES

    @property
    def trials(self) -> int:
        """How many."""
        return len(self.names) * len(self.rates) * self.seeds

    def training(self, rate: float) -> Training:
        """How a trial is trained."""
        return Training(learning_rate=rate, batch_tokens=self.batch * self.task.length, warmup=0.1)

    def points(self) -> dict[str, dict[str, Any]]:
        """The choices of every trial, by a name."""
        return {
            f"{name}, rate {place}, seed {seed}": {"rule": name, "rate": str(place), "seed": seed}
            for name in self.names
            for place in range(len(self.rates))
            for seed in range(self.seeds)
        }


FULL = Grid(
    MqarOptions(length=256, pairs=32, evaluation=500),
    Model(width=128, heads=2, layers=2, mlp_ratio=0),
    batch=64,
    steps=500,
    seeds=2,
)
TINY = Grid(
    MqarOptions(length=16, pairs=2, vocabulary=16, evaluation=16),
    Model(width=16, heads=2, layers=1, mlp_ratio=0),
    batch=4,
    steps=12,
    seeds=2,
    names=RULES[:2],
    rates=RATES[:2],
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of the grid, as the driver takes it."""

    grid: Grid
    name: str
    rate: float
    seed: int

    @property
    def variant_hash(self) -> str:
        """Another one for each trial."""
        return f"{self.name}/{self.rate}/{self.seed}"

    def record(self) -> dict[str, object]:
        """Its part of trial.json; the layer is that of the rule's paper."""
        parts = {"model": self.grid.model, "training": self.grid.training(self.rate)}
        return {
            "choices": {"rule": self.name, "rate": self.rate, "seed": self.seed},
            **_of_rule(self.name),
            "seed": self.seed,
            "budget": to_plain(Budget()),
            **{part: to_plain(value) for part, value in parts.items()},
        }


@functools.cache
def _of_rule(name: str) -> dict[str, object]:
    """What the records of a rule's trials share."""
    rule = rules[name]
    return {"rule": str(rule), "rule_hash": rule.hash, "layer": to_plain(layer_of(rule, None))}


def resolve(grid: Grid, choose: Choose) -> Trial:
    """The trial that a chooser gives."""
    names: OneOf = one_of(*grid.names)
    places: OneOf = one_of(*map(str, range(len(grid.rates))))
    name, place = str(choose("rule", names)), int(choose("rate", places))
    return Trial(grid, name, grid.rates[place], int(choose("seed", Integer(0, grid.seeds - 1))))


def plan_of(grid: Grid, *, graphs: bool) -> Plan:
    """The grid as the question of a study."""
    tokens = grid.steps * grid.batch * grid.task.length
    tasks = Tasks(mqar=replace(grid.task, tokens=tokens))
    details = {"config": {"tasks": to_plain(tasks), "evaluations": 1, "backend": "auto", "graphs": graphs}}
    return Plan(
        objectives={"recall": Direction.MAXIMIZE},
        rungs=RungOptions(count=1, free_pass_every=0),
        sampler=SamplerOptions(),
        seed=0,
        total_tokens=tokens,
        holes=3,
        baselines=grid.points(),
        details=details,
    )
