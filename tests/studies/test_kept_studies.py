"""The studies in studies/configs can be read, and their spaces hold what they ask for."""

from pathlib import Path

import pytest

from archsearch.studies.design.config import StudyConfig
from archsearch.studies.design.entrants import entrant_points
from archsearch.studies.training.configuration import read_config

CONFIGS = Path(__file__).parents[2] / "studies" / "configs"
RESULTS = CONFIGS.parent / "results"
STUDIES = sorted(path for path in CONFIGS.glob("*.yaml") if path.stem != "trial")
"""All but the one trial."""


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_kept_study_can_be_read(path: Path) -> None:
    config = read_config(StudyConfig, path)
    space = config.load_space()
    points = entrant_points(space, config.entrants)
    assert len({point.variant_hash for point in points.values()}) == len(config.entrants)
    assert config.trials or points


def test_the_rates_study_has_every_rule_at_every_rate() -> None:
    config = read_config(StudyConfig, CONFIGS / "rates.yaml")
    assert len(config.entrants) == 5 * len(config.learning_rates)
    assert config.against in config.entrants


def test_the_kept_studies_train_what_may_be_one_model_together() -> None:
    rates, family = (read_config(StudyConfig, CONFIGS / f"{name}.yaml") for name in ("rates", "delta-family"))
    assert rates.resources.together == len(rates.learning_rates) * rates.seeds.finals
    slots, grid = family.resources.concurrent or 0, len(family.learning_rates)
    assert slots % grid == 0 and slots >= grid * len(family.baselines)  # whole structures, baselines at once
    for config in (rates, family):
        assert round(1 / (config.resources.gpus or 1)) == config.resources.concurrent


def test_what_is_kept_of_studies_is_small() -> None:
    sizes = {path: path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()}
    assert sizes and {path: size for path, size in sizes.items() if size >= 1_000_000} == {}
