"""From operands, or a language model and tokens, to every quantity of every layer, in the dtype of the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from archsearch.errors import ConfigError, OperandError
from archsearch.lowering import NormalForm, lower
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.models.blocks import Block
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.probes.addresses import Collateral, geometry
from archsearch.mixers.probes.anatomy import addresses_of, parts_of
from archsearch.mixers.probes.contraction import Drift, contraction
from archsearch.mixers.probes.forgetting import Forgetting
from archsearch.mixers.probes.gates import gate_shares, memory_length
from archsearch.mixers.probes.quantities import Found, LeftOut, Name, Quantity, places
from archsearch.mixers.probes.readout import Readout
from archsearch.mixers.probes.remaining import Remaining
from archsearch.mixers.probes.replay import prepared, replay
from archsearch.mixers.probes.transitions import transitions
from archsearch.mixers.probes.updates import Health, Updates

LEAST_TOKENS = 16
"""Of a sequence: below it nothing is old."""


@dataclass(frozen=True, slots=True)
class Samples:
    """How much of what is dear is looked at, of each sequence: states for singular values, tokens that are followed,
    windows of tokens for spectra. seed: of the random addresses.
    """

    states: int = 16
    followed: int = 16
    windows: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LayerProbe:
    """One layer. index: its place in the model, from 0."""

    index: int
    found: tuple[Found, ...]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What was found."""
        return tuple(each for each in self.found if isinstance(each, Quantity))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What the rule has no part for."""
        return tuple(each for each in self.found if isinstance(each, LeftOut))

    def of(self, name: Name) -> tuple[Quantity, ...]:
        """The quantities of one name: one for each row or pair of addresses."""
        return tuple(each for each in self.quantities if each.name is name)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        left_out = {each.name.value: each.reason for each in self.left_out}
        return {"layer": self.index, "quantities": [each.as_json() for each in self.quantities], "left_out": left_out}


def probe_operands(form: NormalForm, operands: Mapping[str, Tensor], samples: Samples | None = None) -> list[Found]:
    """Every quantity of one layer, from its operands as `archsearch.compile` takes them, [B, T, ...].

    Errors: OperandError for operands that do not fit the rule or sequences of fewer than 16 tokens.
    """
    chosen, tensors = samples or Samples(), prepared(form, operands)
    tokens = next(iter(tensors.values())).shape[1]
    if tokens < LEAST_TOKENS:
        raise OperandError(
            f"a probe needs sequences of at least {LEAST_TOKENS} tokens; got {tokens}. Give a longer text"
        )
    parts = parts_of(form)
    times = places(tokens, chosen.states)
    followed = places(3 * tokens // 4, chosen.followed)  # so that each of them grows old
    watching = (
        Drift(parts),
        Readout(form, parts),
        Collateral(form, parts, tensors, chosen.seed),
        Updates(times),
        Forgetting(parts, tensors, followed),
        Remaining(parts, tensors[addresses_of(form)[0].name], followed),
        Health(form, tensors, times),
    )
    for moment in replay(form, tensors):
        for each in watching:
            each.see(moment)
    found = [
        *contraction(parts, tensors),
        *gate_shares(form, parts, tensors),
        *geometry(form, tensors),
        *memory_length(form, tensors),
        *transitions(form, tensors, chosen.windows),
        *(told for each in watching for told in each.found()),
    ]
    order = list(Name)
    return sorted(found, key=lambda each: order.index(each.name))


def probe_model(model: LanguageModel, tokens: Tensor, samples: Samples | None = None) -> Iterator[LayerProbe]:
    """Every layer of the model that is of its rule, one after another, on tokens int64 [B, T].

    Errors: ConfigError for a model without such a layer; OperandError as `probe_operands`, and for tokens beyond the
    vocabulary.
    """
    mixers = mixers_of(model)
    if not mixers:
        raise ConfigError(f"a probe needs a layer of the rule; the model's pattern is {', '.join(model.model.pattern)}")
    form = lower(model.rule)
    seen = operands_of(model, mixers, tokens)
    for index in mixers:
        yield LayerProbe(index, tuple(probe_operands(form, seen[index], samples)))


def mixers_of(model: LanguageModel) -> dict[int, Mixer]:
    """The model's layers of its rule, by their place."""
    blocks = [cast(Block, block) for block in model.blocks]
    return {index: block.mixer for index, block in enumerate(blocks) if isinstance(block.mixer, Mixer)}


@torch.no_grad()
def operands_of(model: LanguageModel, mixers: Mapping[int, Mixer], tokens: Tensor) -> dict[int, dict[str, Tensor]]:
    """What each mixer hands its rule while the model reads tokens [B, T]."""
    inputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs[module] = given[0].detach()

    training = model.training
    handles = [mixer.register_forward_pre_hook(keep) for mixer in mixers.values()]
    try:
        model.eval().hidden(tokens)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return {index: mixer.operands(inputs[mixer]) for index, mixer in mixers.items()}
