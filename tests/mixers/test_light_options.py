"""Options are data: they load without torch, and go to plain data and back."""

import subprocess
import sys

import pytest

from archsearch.mixers.layer.options import (
    BoundedDecay,
    Layer,
    LowRank,
    MambaDecay,
    Projection,
    Sigmoid,
    SignedDecay,
    Static,
)
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules
from archsearch.typed_data import from_plain, to_plain


def test_options_rules_and_counts_load_no_torch() -> None:
    code = (
        "import sys, archsearch.mixers.layer.options, archsearch.mixers.models.options\n"
        "import archsearch.mixers.models.counts\n"
        "from archsearch.mixers.zoo import rules; dict(rules)\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", rules)
def test_a_papers_layer_survives_the_way_through_yaml(name: str) -> None:
    layer = paper_layer(rules[name])
    assert from_plain(Layer, to_plain(layer), "here") == layer


def test_every_kind_of_option_survives_the_way_through_yaml() -> None:
    sources = {
        "a": Projection("q"),
        "b": Static("rms"),
        "c": Sigmoid(0.5, 2.0, LowRank(3)),
        "d": SignedDecay(LowRank(None, shared=True)),
        "e": MambaDecay(),
        "f": BoundedDecay("eda", projection=LowRank(2)),
    }
    layer = Layer(head_dim=8, gate_projection=LowRank(4), gate_first=True, operands=sources)
    assert from_plain(Layer, to_plain(layer), "here") == layer
    model = Model(pattern=("rule", "attention"), tie_embeddings=False)
    assert from_plain(Model, to_plain(model), "here") == model
