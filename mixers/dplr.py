"""Diagonal plus low rank: a free rank-one transition beside the decay and the write (generalized delta rule of
flash-linear-attention; RWKV-7 is its case a = -s * kap, b = kap).

    S = (Diag(exp(g)) + a b^T) S_(t-1) + k v^T

In the layer b is unit and a = -s * b, s in (0, 1)^K, as in RWKV-7: the eigenvalues of I + a b^T lie in (0, 1], though
one token can enlarge the state 1.15 times. With an a of its own it has no bound.
"""

from archsearch.dsl import Rule, decay, delta_write, key, log_decay, query, read, simultaneous, value, write
from archsearch.mixers.layer.options import Gated, Layer, LowRank, MambaDecay

q, k, v, a, b = query("q"), key("k"), value("v"), key("a"), key("b")
g = log_decay("g", per="channel")

RULE = Rule(
    "dplr",
    decay(g),
    simultaneous(delta_write(a, 0.0 * v, strength=-1.0, residual=b, reads="previous"), write(k, v)),
    read(q),
)

LAYER = Layer(
    operands={
        "a": Gated("b", scale=-1.0),
        "g": MambaDecay(low=1, high=16, projection=LowRank(None, shared=True)),
    },
)
