"""Options hold what their annotations say, whoever builds them: a file, a space or a line of Python."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from archsearch.errors import ConfigError
from archsearch.holes import log_uniform, one_of
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.spaces.options import Budget, Training
from archsearch.studies.design.entrants import Seeds
from archsearch.studies.search.rungs import RungOptions
from archsearch.studies.search.samplers import SamplerOptions
from archsearch.studies.workers.executor import Resources

KINDS: list[Any] = [Training, Budget, Model, Layer, Resources, RungOptions, SamplerOptions, Seeds]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Training, {"learning_rate": "1e-3"}, "training.learning_rate must be a number; got '1e-3'"),
        (Training, {"learning_rate": float("inf")}, "training.learning_rate must be > 0; got inf"),
        (Training, {"clip": None}, "training.clip must be a number; got None"),
        (Training, {"warmup": True}, "training.warmup must be a number; got True"),
        (Training, {"batch_tokens": 64.0}, "training.batch_tokens must be an integer; got 64.0"),
        (Training, {"schedule": "wsd"}, "training.schedule must be one of Schedule.WSD, Schedule.COSINE; got 'wsd'"),
        (Budget, {"tokens": "1e6"}, "budget.tokens must be an integer or null; got '1e6'"),
        (Budget, {"parameters": [1]}, "budget.parameters must be an integer or text or null; got [1]"),
        (Model, {"dropout": None}, "model.dropout must be a number; got None"),
        (Model, {"pattern": 3}, "model.pattern must be a tuple; got 3"),
        (Model, {"pattern": ["rule"]}, "model.pattern must be a tuple; got ['rule']"),
        (Model, {"latent": 64}, "model.latent must be Latent; got 64"),
        (Layer, {"skip": "no"}, "layer.skip must be true or false; got 'no'"),
        (Layer, {"output_gate": None}, "layer.output_gate must be one of swish, sigmoid, linear, none; got None"),
        (Layer, {"operands": "gate"}, "layer.operands must be a mapping; got 'gate'"),
        (Resources, {"cpus": "2"}, "resources.cpus must be an integer; got '2'"),
        (Resources, {"workers": "slurm"}, "resources.workers must be one of ray, local; got 'slurm'"),
        (RungOptions, {"eta": 2.5}, "rungs.eta must be an integer; got 2.5"),
        (SamplerOptions, {"startup": "20"}, "sampler.startup must be an integer or null; got '20'"),
        (Seeds, {"search": True}, "seeds.search must be an integer; got True"),
    ],
)
def test_another_type_is_refused(kind: Any, given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**given)
    assert str(error.value) == message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", [[1], {1: 2}, object()], ids=["list", "mapping", "thing"])
def test_no_option_takes_anything(kind: Any, value: object) -> None:
    for field in fields(kind):
        with pytest.raises(ConfigError, match=field.name):
            kind(**{field.name: value})


def test_holes_and_whole_numbers_pass() -> None:
    rate = log_uniform(1e-4, 1e-2)
    assert Training(learning_rate=rate, clip=1, weight_decay=0).learning_rate is rate  # pyright: ignore[reportArgumentType]
    pattern: Any = ("rule", one_of("attention", "conv"))
    assert Model(pattern=pattern, mlp_ratio=2).pattern == pattern
