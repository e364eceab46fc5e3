"""KDA with signs: each key channel decays by a number in (-1, 1), the delta write may reflect (arXiv 2609.24797).

    S = (I - beta k k^T) Diag(s exp(g)) S_(t-1) + beta k v^T        s in {-1, 1}, beta in (0, 2)

alpha = s exp(g) is one tanh in the layer, spread over both signs at the start.
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, LowRank, Sigmoid, SignedDecay

q, k, v = query("q"), key("k"), value("v")
g, beta = log_decay("g", per="channel", signed=True), gate("beta")

RULE = Rule("ckda", decay(g), delta_write(k, v, strength=beta), read(q))

LAYER = Layer(
    output_gate="sigmoid",
    gate_projection=LowRank(None, shared=True, bias=True),
    operands={"g": SignedDecay(LowRank(None, shared=True)), "beta": Sigmoid(scale=2.0)},
)
