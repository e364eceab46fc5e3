"""The studies in studies/configs can be read, and their spaces hold what they ask for."""

from pathlib import Path

import pytest

from archsearch.studies.design.config import StudyConfig
from archsearch.studies.design.entrants import entrant_points
from archsearch.studies.training.configuration import read_config

CONFIGS = Path(__file__).parents[2] / "studies" / "configs"
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
