"""A/A studies: the verdict code finds no winner where there is none, and finds one that is planted."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archsearch.errors import ConfigError, StudyError
from archsearch.studies import commands
from archsearch.studies.evidence.aa import LEAST_POOL, LEAST_STUDIES, Setting, Trained, drawn, simulate
from archsearch.studies.evidence.comparison import Strictness
from archsearch.studies.evidence.pool import read_pool
from archsearch.studies.tasks.direction import Direction

SETTING = Setting(studies=300)


def pool(size: int = 64, *, seed: int = 0, shape: str = "normal") -> dict[str, Trained]:
    random = np.random.default_rng(seed)
    values = random.normal(size=size) if shape == "normal" else (random.random(size) < 0.2).astype(float)
    return {"loss": Trained(Direction.MINIMIZE, [float(v) for v in values])}


@pytest.mark.parametrize("shape", ["normal", "bimodal"])
def test_equal_rules_rarely_win_and_intervals_cover(shape: str) -> None:
    figures = simulate(pool(shape=shape), SETTING).objectives["loss"]
    assert figures.false_winners <= 0.05 and figures.false_losers <= 0.05
    assert figures.coverage >= 0.90
    assert figures.comparisons == 900 and sum(figures.words.values()) == 900


def test_normal_values_are_covered_as_often_as_promised() -> None:
    figures = simulate(pool(), Setting(studies=1000)).objectives["loss"]
    assert figures.coverage == pytest.approx(0.95, abs=0.02)
    assert figures.deviation == pytest.approx(1.0, abs=0.2)


def test_a_lax_verdict_is_found_out() -> None:
    """At level 0.5 every second study has a false winner or loser: the figures see what they are there to see."""
    figures = simulate(pool(), SETTING, Strictness(level=0.5)).objectives["loss"]
    assert figures.false_winners > 0.15 and figures.coverage < 0.6


def test_documents_of_a_pool_are_judged_too() -> None:
    random = np.random.default_rng(1)
    sizes = np.full(8, 100.0)
    bits = 400 + 5 * random.normal(size=(48, 1)) + 5 * random.normal(size=(48, 8))
    trained = Trained(Direction.MINIMIZE, [float(b) for b in bits.sum(1) / 800], 0.0, bits, sizes)
    figures = simulate({"bits_per_byte": trained}, Setting(studies=50)).objectives["bits_per_byte"]
    assert figures.false_winners <= 0.1 and figures.coverage >= 0.9


def test_halves_share_no_seed_and_are_left_out_when_too_small() -> None:
    found = simulate(pool(48), Setting(studies=20))
    assert len(found.halves) == 2 and all(half["loss"].comparisons == 60 for half in found.halves)
    assert simulate(pool(40), Setting(studies=20)).halves == []


def test_a_pool_too_small_for_a_study_is_refused() -> None:
    with pytest.raises(StudyError, match="needs a pool of 24 trained seeds; got 23; train more or ask for fewer"):
        simulate(pool(23), SETTING)


def test_the_same_pool_gives_the_same_figures() -> None:
    assert simulate(pool(), Setting(studies=30)).record() == simulate(pool(), Setting(studies=30)).record()


RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results"


@pytest.mark.parametrize(("folder", "objective"), [("aa", "bits_per_byte"), ("aa-recall", "recall")])
def test_kept_seeds_keep_the_promise(folder: str, objective: str) -> None:
    """At most 5 % of studies with a false winner, 90 to 97 % of intervals on the truth, from 60 seeds at least."""
    kept = read_pool(RESULTS / folder / "seeds.json")
    assert len(set(kept.seeds)) == len(kept.seeds) >= LEAST_POOL
    assert len(set(kept.objectives[objective].values)) > len(kept.seeds) / 2
    figures = simulate({objective: kept.objectives[objective]}, Setting(studies=LEAST_STUDIES)).objectives[objective]
    assert figures.false_winners <= 0.05 and 0.90 <= figures.coverage <= 0.97


@pytest.mark.parametrize("folder", ["aa", "aa-recall"])
def test_kept_figures_are_those_of_the_kept_seeds(folder: str) -> None:
    """All that the kept file states of the whole pool, drawn again through the verdict code as it is now."""
    kept = json.loads((RESULTS / folder / "aa.json").read_text(encoding="utf-8"))
    pool_of_it = read_pool(RESULTS / folder / "seeds.json")
    again, any_winner = drawn(pool_of_it.objectives, Setting(kept["studies"], kept["finalists"], kept["seeds"]))
    assert set(again) == set(kept["objectives"]) and any_winner == kept["any_winner"]
    for name, figures in again.items():
        assert near(figures.record()) == kept["objectives"][name]
    assert (kept["pool"], kept["rule"]) == (len(pool_of_it.seeds), pool_of_it.rule)


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("seeds.json", ["trials=3"], "take no overrides; got trials=3"),
        ("other.json", [], "must lie in a file seeds.json"),
    ],
)
def test_kept_seeds_are_neither_trained_otherwise_nor_written_over_others(
    tmp_path: Path, name: str, overrides: list[str], words: str
) -> None:
    for each in ("seeds.json", "other.json"):
        shutil.copy(RESULTS / "aa-recall" / "seeds.json", tmp_path / each)
    with pytest.raises(ConfigError, match=words):
        commands.aa(str(tmp_path / name), overrides, setting=Setting(studies=2), json=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "seeds.json"]


@pytest.mark.parametrize(("folder", "objective"), [("aa", "recall"), ("aa-recall", "recall_loss")])
def test_kept_figures_of_the_halves_are_those_of_half_the_seeds(folder: str, objective: str) -> None:
    kept = json.loads((RESULTS / folder / "aa.json").read_text(encoding="utf-8"))
    whole = read_pool(RESULTS / folder / "seeds.json").objectives[objective]
    setting = Setting(kept["studies"], kept["finalists"], kept["seeds"])
    for place, half in enumerate(kept["halves"]):
        part = {objective: whole.only(range(place, len(whole.values), 2))}
        assert near(drawn(part, setting)[0][objective].record()) == half[objective]


def near(record: dict[str, Any]) -> dict[str, Any]:
    """Numbers with a point up to the last digits, which sums in another order change; counts and shares as they are."""
    return {k: pytest.approx(v, rel=1e-9) if k in ("half_width", "deviation") else v for k, v in record.items()}
