"""Gated DeltaNet with a diagonal preconditioner: channels that were written often are written less (arXiv 2604.21100).

    S' = exp(g) S_(t-1)        S = S' + beta (m * k) (v - S'^T k)^T

m = 1.5^(-s), s = r / (1 + |r|), r = log(A + 1e-6) - c, A = exp(g) A_(t-1) + beta k * k: a scan over the inputs alone,
which the layer makes, so the rule is affine in S.
"""

from archsearch.dsl import Rule, channel_gate, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Layer, MambaDecay, Preconditioner

q, k, v = query("q"), key("k"), value("v")
g, beta, m = log_decay("g"), gate("beta"), channel_gate("m")

RULE = Rule("precond_gdn", decay(g), delta_write(m * k, v, strength=beta, residual=k), read(q))

LAYER = Layer(
    expand_v=2.0,
    operands={"g": MambaDecay(low=0, high=16), "m": Preconditioner("k", strength="beta", decay="g")},
)
