"""A probe of a whole model."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from probed import beta, dot, g, k, lam, one, operands, q, v

from archsearch.dsl import Rule, decay, delta_write, query_feedback, read
from archsearch.errors import ConfigError, OperandError
from archsearch.lowering import lower
from archsearch.mixers.models.blocks import Block
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.probes.probe import mixers_of, operands_of, probe_model, probe_operands
from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules


def test_a_model_is_probed_in_its_layers_of_the_rule_and_left_as_it_was() -> None:
    rule = Rule("mine", decay(g), delta_write(k, v, strength=beta, residual=query_feedback(q, lam)), read(q))
    model = LanguageModel(rule, Model(width=16, heads=1, layers=3, pattern=("rule", "attention")), None, 20).train()
    tokens = torch.randint(20, (2, 24))
    layers = list(probe_model(model, tokens))
    assert [layer.index for layer in layers] == [0, 2] and model.training
    mixers = mixers_of(model)
    assert not any(mixer._forward_pre_hooks for mixer in mixers.values())
    seen = operands_of(model, mixers, tokens)[0]
    expected = mixers[0].operands(cast(Block, model.blocks[0]).mixer_norm(model.embedding(tokens)))
    assert all(torch.equal(seen[name], expected[name]) for name in expected)
    step = seen["beta"] * dot(seen["k"], seen["k"] + seen["lam"][..., None] * seen["q"])
    found = one(layers[0], Name.CONTRACTION).figures["mean"][0]
    assert found is not None and math.isclose(found, float(step.mean()), rel_tol=1e-5)


def test_short_sequences_and_models_without_the_rule_are_refused() -> None:
    x = {name: tensor[:, :15] for name, tensor in operands(rules["kda"]).items()}
    with pytest.raises(OperandError, match="at least 16 tokens; got 15"):
        probe_operands(lower(rules["kda"]), x)
    model = LanguageModel(rules["kda"], Model(width=16, heads=1, layers=1, pattern=("attention",)), None, 20)
    with pytest.raises(ConfigError, match="needs a layer of the rule"):
        list(probe_model(model, torch.randint(20, (1, 20))))
