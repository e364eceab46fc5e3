"""Rungs decide by rank among all that came, once, and remember it; fronts order several objectives."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from archsearch.errors import ConfigError, StudyError
from archsearch.studies.files import records
from archsearch.studies.search.fronts import _volume, dominates, front, place, ranking
from archsearch.studies.search.rungs import RungOptions, Rungs, rung_tokens
from archsearch.studies.tasks.direction import Direction

LOSS = {"loss": Direction.MINIMIZE}
BOTH = {"recall": Direction.MAXIMIZE, "bytes": Direction.MINIMIZE}


def _rungs(path: Path, objectives: dict[str, Direction] = LOSS, **options: int) -> Rungs:
    return Rungs(
        path / "rungs.jsonl", RungOptions(**({"count": 3, "eta": 2, "min_peers": 2} | options)), objectives, 1000
    )


def test_rungs_are_powers_of_eta_and_end_at_the_budget() -> None:
    assert rung_tokens(RungOptions(count=4, eta=4), 64_000) == (1000, 4000, 16_000, 64_000)
    assert rung_tokens(RungOptions(count=1), 10) == (10,)
    with pytest.raises(StudyError, match="4 rungs need a larger budget than 10 tokens; use fewer rungs"):
        rung_tokens(RungOptions(count=4, eta=4), 10)


def test_the_best_share_goes_on_once_enough_peers_have_come(tmp_path: Path) -> None:
    rungs = _rungs(tmp_path, eta=2, min_peers=3)
    stops = [rungs.decide(i, 0, {"loss": x}, pardon=None).stop for i, x in enumerate([5.0, 9.0, 1.0, 7.0, 4.0])]
    assert stops == [False, False, False, True, False]


def test_a_decision_is_made_once_and_survives(tmp_path: Path) -> None:
    rungs = _rungs(tmp_path)
    rungs.decide(0, 0, {"loss": 1.0}, pardon=None)
    first = rungs.decide(1, 0, {"loss": 2.0}, pardon=None)
    assert first.stop
    again = _rungs(tmp_path)
    assert again.decide(1, 0, {"loss": 0.0}, pardon=None) == first
    assert len(records.read_lines(tmp_path / "rungs.jsonl")) == 2
    assert again.stopped(1) == first and again.stopped(0) is None


def test_a_pardoned_trial_goes_on_and_still_counts_as_a_peer(tmp_path: Path) -> None:
    rungs = _rungs(tmp_path)
    rungs.decide(0, 0, {"loss": 1.0}, pardon=None)
    assert not rungs.decide(1, 0, {"loss": 9.0}, pardon="a baseline").stop
    assert rungs.decide(2, 0, {"loss": 5.0}, pardon=None).peers == 3


def test_each_rung_has_its_own_peers(tmp_path: Path) -> None:
    rungs = _rungs(tmp_path)
    for trial in range(3):
        rungs.decide(trial, 0, {"loss": float(trial)}, pardon=None)
    assert rungs.decide(0, 1, {"loss": 9.0}, pardon=None).peers == 1


def test_several_objectives_stop_the_dominated(tmp_path: Path) -> None:
    rungs = _rungs(tmp_path, BOTH, eta=2, min_peers=2)
    rungs.decide(0, 0, {"recall": 0.9, "bytes": 100.0}, pardon=None)
    assert rungs.decide(1, 0, {"recall": 0.8, "bytes": 200.0}, pardon=None).stop
    assert not rungs.decide(2, 0, {"recall": 0.95, "bytes": 50.0}, pardon=None).stop


def test_fronts_hold_what_nothing_dominates() -> None:
    points = [(1.0, 5.0), (2.0, 2.0), (5.0, 1.0), (3.0, 3.0), (6.0, 6.0), (2.0, 2.0)]
    assert front(points) == [0, 1, 2, 5]
    assert dominates((1.0, 1.0), (1.0, 2.0)) and not dominates((1.0, 1.0), (1.0, 1.0))
    order = ranking(points)
    assert sorted(order[:4]) == [0, 1, 2, 5] and order[4:] == [3, 4]


def test_inside_a_front_the_larger_volume_comes_first() -> None:
    crowded = [(0.0, 10.0), (0.1, 9.9), (5.0, 5.0), (10.0, 0.0)]
    assert ranking(crowded)[0] == 2


def test_three_objectives_are_ranked_by_volume_too() -> None:
    points = [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (0.2, 0.2, 0.2)]
    assert ranking(points)[0] == 3


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_volumes_are_those_of_the_cells_that_points_dominate(objectives: int) -> None:
    draw = random.Random(objectives)
    for count in range(1, 9):
        points = np.array([[draw.randint(0, 5) / 5 for _ in range(objectives)] for _ in range(count)])
        corners = itertools.product(np.arange(11) / 10, repeat=objectives)  # lower corners of cells as wide as 0.1
        cells = sum(
            any(all(p <= c + 1e-9 for p, c in zip(q, corner, strict=True)) for q in points) for corner in corners
        )
        assert _volume(points) == pytest.approx(cells * 0.1**objectives)


def test_a_place_is_that_of_the_whole_ranking() -> None:
    draw = random.Random(0)
    points = [(draw.randint(0, 9) / 9, draw.random(), draw.random()) for _ in range(40)]
    assert [ranking(points)[place(points, i)] for i in range(40)] == list(range(40))


def test_one_objective_is_ranked_by_value_then_age() -> None:
    assert ranking([(3.0,), (1.0,), (2.0,), (1.0,)]) == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "rungs.count must be >= 1; got 0"),
        ({"count": 10**9}, "rungs.count must be <= 64; got 1000000000; the first would see no token"),
        ({"eta": 1}, "rungs.eta must be >= 2; got 1"),
        ({"free_pass_every": -1}, "rungs.free_pass_every must be >= 0; got -1"),
        ({"min_peers": 0}, "rungs.min_peers must be >= 1; got 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        RungOptions(**options)
    assert str(error.value) == message
