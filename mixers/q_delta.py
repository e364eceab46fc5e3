"""Q-Delta: the query takes part in the memory update (arXiv 2606.08804, Eqs. 19-20)."""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, query_feedback, read, value
from archsearch.mixers.layer.options import Layer, MambaDecay, Sigmoid

q, k, v = query("q"), key("k"), value("v")
g, beta, lam = log_decay("g"), gate("beta"), gate("lam")

RULE = Rule("q_delta", decay(g), delta_write(k, v, strength=beta, residual=query_feedback(q, lam)), read(q))

LAYER = Layer(
    expand_v=2.0,
    norm_eps=1e-6,
    operands={"g": MambaDecay(low=0, high=16), "lam": Sigmoid(bias=-0.8)},
)
