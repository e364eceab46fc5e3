"""Identity plus low rank: a free rank-one transition and a write, no decay (generalized delta rule of
flash-linear-attention).

    S = (I + a b^T) S_(t-1) + k v^T

In the layer b is unit and a = -s * b, s in (0, 1)^K, as in RWKV-7: the eigenvalues of I + a b^T lie in (0, 1], though
one token can enlarge the state 1.15 times. With an a of its own it has no bound.
"""

from archsearch.dsl import Rule, delta_write, key, query, read, simultaneous, value, write
from archsearch.mixers.layer.options import Gated, Layer

q, k, v, a, b = query("q"), key("k"), value("v"), key("a"), key("b")

RULE = Rule(
    "iplr",
    simultaneous(delta_write(a, 0.0 * v, strength=-1.0, residual=b, reads="previous"), write(k, v)),
    read(q),
)

LAYER = Layer(operands={"a": Gated("b", scale=-1.0)})
