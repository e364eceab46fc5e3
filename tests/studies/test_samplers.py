"""Samplers by name: each repeats itself, whatever the restarts, and says what it cannot search."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archsearch.errors import ConfigError
from archsearch.holes import Choose, Hole, Integer, OneOf, Uniform
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.search import samplers
from archsearch.studies.search.samplers import SamplerKind, SamplerOptions, check_sampler, grid
from archsearch.studies.tasks.direction import Direction

NUMBERS: dict[str, Hole] = {"training/learning_rate": Uniform(1e-3, 1e-2, log=True), "model/layers": Integer(1, 4)}
NAMES: dict[str, Hole] = {**NUMBERS, "rule/decay": OneOf(("none", "scalar"), (None, 1))}


def _rate(choose: Choose, toy: ModuleType) -> Any:
    return toy.ToyPoint({"kind": "down", "kind=down/rate": choose("rate", Uniform(0.01, 1.0, log=True))})


@pytest.mark.parametrize("kind", list(SamplerKind))
def test_every_sampler_proposes_the_same_whatever_the_restarts(
    toy: ModuleType, threads: Any, tmp_path: Path, kind: SamplerKind
) -> None:
    options = SamplerOptions(kind=kind, startup=3, random_every=0, levels=12)
    plan = toy.plan({"loss": Direction.MINIMIZE}, sampler=options, baselines={}, rungs=toy.RungOptions(count=1))

    def play(directory: str, *parts: int) -> list[tuple[Any, Any]]:
        for trials in parts:
            executor = threads(toy.ToyBody(0.0))
            toy.study(
                tmp_path / directory,
                lambda executor=executor: executor,
                trials=trials,
                plan=plan,
                resolve=lambda choose: _rate(choose, toy),
            )
        found = StudyDirectory(tmp_path / directory).trials().values()
        proposals = [trial.proposal() or {} for trial in found]
        return [(proposal["choices"]["kind=down/rate"], proposal["sampler"]) for proposal in proposals]

    straight = play("straight", 9)
    assert play("restarted", 2, 5, 9) == straight
    assert {sampler for _, sampler in straight} == {kind.value}
    assert len({rate for rate, _ in straight}) == 9


def test_a_grid_ends_when_every_point_was_tried_once(toy: ModuleType, threads: Any, tmp_path: Path) -> None:
    plan = toy.plan(sampler=SamplerOptions(kind=SamplerKind.GRID, levels=3))
    executor = threads(toy.ToyBody(0.0))
    toy.study(tmp_path / "study", lambda: executor, trials=100, plan=plan)
    choices = [(trial.proposal() or {})["choices"] for trial in StudyDirectory(tmp_path / "study").trials().values()]
    orders = sorted(choice["kind=up/order"] for choice in choices if "kind=up/order" in choice)
    rates = sorted(choice["kind=down/rate"] for choice in choices if "kind=down/rate" in choice)
    assert orders == list(range(1, 9))
    assert rates == pytest.approx([0.01, 0.1, 0.1, 1.0]), "the baseline is a point of it too, and is not run again"
    assert len(executor.started) == 11


def test_a_grid_goes_through_branches_in_an_order_of_its_seed(toy: ModuleType) -> None:
    options = SamplerOptions(kind=SamplerKind.GRID, levels=2)
    first = grid(toy.resolve, options, 0)
    assert len(first) == 8 + 2 and first == grid(toy.resolve, options, 0) != grid(toy.resolve, options, 1)


@pytest.mark.parametrize(
    ("options", "holes", "objectives", "message"),
    [
        (
            SamplerOptions(kind=SamplerKind.CMAES),
            NAMES,
            ["loss"],
            "sampler.kind cmaes draws numbers only; rule/decay is a choice of names; use tpe or close the hole",
        ),
        (
            SamplerOptions(kind=SamplerKind.CMAES),
            NUMBERS,
            ["loss", "state_bytes"],
            "sampler.kind cmaes takes one objective; got 2 (loss, state_bytes); use tpe or nsga2",
        ),
        (
            SamplerOptions(kind=SamplerKind.GRID),
            NAMES,
            ["loss"],
            "sampler.kind grid needs finitely many values; training/learning_rate is a range; "
            "set sampler.levels, say to 4",
        ),
    ],
)
def test_a_space_that_a_sampler_cannot_search_is_refused(
    options: SamplerOptions, holes: dict[str, Hole], objectives: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_sampler(options, holes, objectives)
    assert str(error.value) == message
    check_sampler(SamplerOptions(), NAMES, ["loss", "state_bytes"])
    check_sampler(SamplerOptions(kind=SamplerKind.CMAES), NUMBERS, ["loss"])


def test_a_grid_too_large_to_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(choose: Choose) -> tuple[Any, ...]:
        return tuple(choose(f"hole{i}", Integer(1, 50)) for i in range(4))

    monkeypatch.setattr(samplers, "LARGEST_GRID", 1000)

    with pytest.raises(ConfigError, match="grid takes at most 1,000 points; the space has more; use random"):
        grid(wide, SamplerOptions(kind=SamplerKind.GRID), 0)
