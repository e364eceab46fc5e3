"""A shifted key: the value of a token is written at the key of the token before, which recalls the state before the
decay (Falcon-like, arXiv 2608.27763).

    S = alpha S_(t-1) + eta k (v - S_(t-1)^T k)^T        k = k_(t-1), eta = beta / (k.k + eps), alpha = 1 - rate eta

One step of gradient descent with weight decay on predicting v_t from k_(t-1).
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, Step, Vector, WeightDecay

q, k, v = query("q"), key("k"), value("v")
g, eta = log_decay("g"), gate("eta")

RULE = Rule("shifted", decay(g), delta_write(k, v, strength=eta, reads="previous"), read(q))

LAYER = Layer(
    operands={"k": Vector(delayed=True), "eta": Step("k", "kaczmarz", eps=1e-2), "g": WeightDecay("eta")},
)
