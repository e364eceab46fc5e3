"""EDA: a gated erase at its own address between a decay per channel and the delta write (arXiv 2606.26560, Eq. 8)."""

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import BoundedDecay, Layer, LowRank, Sigmoid

q, k, v, e = query("q"), key("k"), value("v"), key("e")
g, beta, gamma = log_decay("g", per="channel"), gate("beta"), gate("gamma")

RULE = Rule("eda", decay(g), erase(e, strength=gamma), delta_write(k, v, strength=beta), read(q))

LAYER = Layer(  # gamma starts at 0.12, where the paper is silent
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={
        "e": LowRank(16),
        "g": BoundedDecay("eda", projection=LowRank(16)),
        "gamma": Sigmoid(bias=-2.0),
    },
)
