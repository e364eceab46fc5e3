"""Gated DeltaNet: the state decays, then the delta write acts (arXiv 2412.06464, Eq. 10)."""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, MambaDecay

q, k, v = query("q"), key("k"), value("v")
g, beta = log_decay("g"), gate("beta")

RULE = Rule("gated_delta_net", decay(g), delta_write(k, v, strength=beta), read(q))

LAYER = Layer(expand_v=2.0, operands={"g": MambaDecay(low=0, high=16)})
