"""Kimi Delta Attention: Gated DeltaNet with a decay per key channel (arXiv 2510.26692, Eq. 1)."""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, LowRank, MambaDecay

q, k, v = query("q"), key("k"), value("v")
g, beta = log_decay("g", per="channel"), gate("beta")

RULE = Rule("kda", decay(g), delta_write(k, v, strength=beta), read(q))

LAYER = Layer(
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={"g": MambaDecay(low=1, high=16, projection=LowRank(None, shared=True))},
)
