"""Comba: the delta write recalls the state before the decay at p, and the read is corrected by d p (arXiv 2506.02475).

    S = exp(g) S_(t-1) + beta k (v - S_(t-1)^T p)^T        o = S^T (q - d p)

p is k times a number in (0, 1) a head, which acts because nothing normalises p after it.
"""

from archsearch.dsl import Rule, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.mixers.layer.options import Constant, Layer, MambaDecay, Scaled

q, k, v, p = query("q"), key("k"), value("v"), key("p")
g, beta, d = log_decay("g"), gate("beta"), gate("d")

RULE = Rule("comba", decay(g), delta_write(k, v, strength=beta, residual=p, reads="previous"), read(q - d * p))

LAYER = Layer(  # d starts at 1; the paper takes 0.02 for small models
    expand_v=2.0,
    output_gate="sigmoid",
    operands={
        "p": Scaled("k", start=0.73, per="head", bounded=True),
        "g": MambaDecay(low=0, high=16),
        "d": Constant(1.0),
    },
)
