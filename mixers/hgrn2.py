"""HGRN2: what a channel forgets is what it takes in, k = 1 - f (arXiv 2404.07904).

    S = Diag(f) S_(t-1) + (1 - f) v^T        f = exp(g)

The recurrence is GLA's; the layer makes k of the decay, f above a lower bound.
"""

from archsearch.dsl import Rule, decay, key, log_decay, query, read, value, write
from archsearch.mixers.layer.options import Complement, Layer, Linear, LowerBound, Vector

q, k, v, g = query("q"), key("k"), value("v"), log_decay("g", per="channel")

RULE = Rule("hgrn2", decay(g), write(k, v), read(q))

LAYER = Layer(
    conv=0,
    output_gate="none",
    operands={
        "q": Vector(norm="none"),
        "k": Complement("g"),
        "v": Vector(activation="none"),
        "g": LowerBound(projection=Linear()),
    },
)
